// The kernels for one instruction set; how it is compiled decides which.
#include "model.h"

#if defined(__AVX512VNNI__)
#define SLIPSTREAM_ISA avx512_vnni
#include "chain.h"
#include "peaks.h"
#endif

namespace slipstream {
#if defined(__AVX512VNNI__)
extern const Kernels kAvx512Vnni = {"avx512_vnni", avx512_vnni::forward, avx512_vnni::multiply,
                                    avx512_vnni::sampling_candidates,
                                    avx512_vnni::follow, avx512_vnni::kPeaks};
#else
extern const Kernels kAvx512Vnni = {};  // compiled for a processor that lacks the instructions
#endif
}  // namespace slipstream
