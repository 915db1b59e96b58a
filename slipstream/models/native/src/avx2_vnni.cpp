// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVXVNNI__)
#define SLIPSTREAM_ISA avx2_vnni
#include "chain.h"
#include "peaks.h"
#endif

namespace slipstream {
#if defined(__AVXVNNI__)
extern const Kernels kAvx2Vnni = {"avx2_vnni", avx2_vnni::forward, avx2_vnni::multiply,
                                  avx2_vnni::sampling_candidates,
                                  avx2_vnni::follow, avx2_vnni::kPeaks};
#else
extern const Kernels kAvx2Vnni = {};  // the compiler is older than the instructions
#endif
}  // namespace slipstream
