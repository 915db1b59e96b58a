// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA portable
#include "chain.h"
#include "peaks.h"

namespace slipstream {
extern const Kernels kPortable = {"portable", portable::forward, portable::multiply,
                                  portable::sampling_candidates,
                                  portable::follow, portable::kPeaks};
}  // namespace slipstream
