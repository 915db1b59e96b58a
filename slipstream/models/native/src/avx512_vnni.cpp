// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512VNNI__)
#define SLIPSTREAM_ISA avx512_vnni
#include "instruction_set.h"

const slipstream::Kernels slipstream::kAvx512Vnni = avx512_vnni::kernels("avx512_vnni");
#else  // the compiler is older than the instructions, or was told to leave them out
const slipstream::Kernels slipstream::kAvx512Vnni = {};
#endif
