// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512BF16__)
#define SLIPSTREAM_ISA avx512_bf16
#include "chain.h"
#include "peaks.h"
#endif

namespace slipstream {
#if defined(__AVX512BF16__)
extern const Kernels kAvx512BFloat16 = {"avx512_bf16", avx512_bf16::forward, avx512_bf16::multiply,
                                        avx512_bf16::sampling_candidates,
                                        avx512_bf16::follow, avx512_bf16::kPeaks};
#else
extern const Kernels kAvx512BFloat16 = {};  // the compiler is older than the instructions
#endif
}  // namespace slipstream
