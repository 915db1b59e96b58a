// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512BF16__)
#define SLIPSTREAM_ISA avx512_bf16
#include "instruction_set.h"

const slipstream::Kernels slipstream::kAvx512BFloat16 = avx512_bf16::kernels("avx512_bf16");
#else  // the compiler is older than the instructions, or was told to leave them out
const slipstream::Kernels slipstream::kAvx512BFloat16 = {};
#endif
