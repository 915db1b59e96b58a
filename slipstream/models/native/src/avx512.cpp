// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512F__)
#define SLIPSTREAM_ISA avx512
#include "instruction_set.h"

const slipstream::Kernels slipstream::kAvx512 = avx512::kernels("avx512");
#else  // the compiler is older than the instructions, or was told to leave them out
const slipstream::Kernels slipstream::kAvx512 = {};
#endif
