// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512F__)
#define SLIPSTREAM_ISA avx512
#include "chain.h"
#include "peaks.h"
#endif

namespace slipstream {
#if defined(__AVX512F__)
extern const Kernels kAvx512 = {"avx512", avx512::forward, avx512::multiply,
                                avx512::sampling_candidates,
                                avx512::follow, avx512::kPeaks};
#else
extern const Kernels kAvx512 = {};  // compiled for a processor that lacks the instructions
#endif
}  // namespace slipstream
