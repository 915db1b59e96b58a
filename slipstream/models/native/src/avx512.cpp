// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA avx512
#include "chain.h"
#include "peaks.h"

namespace slipstream {
extern const Kernels kAvx512 = {"avx512", avx512::forward, avx512::multiply,
                                avx512::sampling_candidates,
                                avx512::follow, avx512::kPeaks};
}  // namespace slipstream
