// The kernels for one instruction set; how it is compiled decides which.
#define SLIPSTREAM_ISA avx512_vnni
#include "chain.h"
#include "peaks.h"

namespace slipstream {
extern const Kernels kAvx512Vnni = {"avx512_vnni", avx512_vnni::forward, avx512_vnni::multiply,
                                    avx512_vnni::sampling_candidates,
                                    avx512_vnni::follow, avx512_vnni::kPeaks};
}  // namespace slipstream
