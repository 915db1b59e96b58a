// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA avx2
#include "instruction_set.h"

const slipstream::Kernels slipstream::kAvx2 = avx2::kernels("avx2");
