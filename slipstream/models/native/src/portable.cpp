// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA portable
#include "decoder.h"
#include "draws.h"

namespace slipstream {
extern const Kernels kPortable = {"portable", portable::forward, portable::multiply,
                                  portable::sampling_candidates};
}  // namespace slipstream
