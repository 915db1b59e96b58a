// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA neon_dot
#include "chain.h"
#include "peaks.h"

namespace slipstream {
extern const Kernels kNeonDot = {"neon_dot", neon_dot::forward, neon_dot::multiply,
                                 neon_dot::sampling_candidates,
                                 neon_dot::follow, neon_dot::kPeaks};
}  // namespace slipstream
