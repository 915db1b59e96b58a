// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA portable
#include "instruction_set.h"

const slipstream::Kernels slipstream::kPortable = portable::kernels("portable");
