// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA avx2
#include "chain.h"
#include "peaks.h"

namespace slipstream {
extern const Kernels kAvx2 = {"avx2", avx2::forward, avx2::multiply, avx2::sampling_candidates,
                              avx2::follow, avx2::kPeaks};
}  // namespace slipstream
