// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVXVNNI__)
#define SLIPSTREAM_ISA avx2_vnni
#include "instruction_set.h"

const slipstream::Kernels slipstream::kAvx2Vnni = avx2_vnni::kernels("avx2_vnni");
#else  // the compiler is older than the instructions, or was told to leave them out
const slipstream::Kernels slipstream::kAvx2Vnni = {};
#endif
