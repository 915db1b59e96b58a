// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA neon_dot
#include "instruction_set.h"

const slipstream::Kernels slipstream::kNeonDot = neon_dot::kernels("neon_dot");
