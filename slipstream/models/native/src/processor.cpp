// The kernels that this processor has.
#include "processor.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace slipstream {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
// A bit of CPUID's second page of extensions: compilers that have the instructions may have no name
// for them here.
bool has_newer(int bit) {
  unsigned a = 0, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1);
}
bool has_avx2_vnni() { return has_avx2() && has_newer(4); }
bool has_avx512_bf16() { return has_avx512_vnni() && has_newer(5); }
// Intel's processors are reported to take longer for a product of pairs than for two cross.
bool is_fast_in_pairs() { return !__builtin_cpu_is("intel"); }
#elif defined(__aarch64__)
bool has_neon_dot() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1 << 20;  // HWCAP_ASIMDDP, which old headers lack
  return getauxval(AT_HWCAP) & kDotProducts;
#else
  return true;  // of Apple's processors each has it
#endif
}
#endif

}  // namespace

const Kernels* kernels(const char* name) {
  const Kernels* known[] = {
#if defined(__x86_64__)
      has_avx512_bf16() && (*name != 0 || is_fast_in_pairs()) ? &kAvx512BFloat16 : nullptr,
      has_avx512_vnni() ? &kAvx512Vnni : nullptr,
      has_avx512() ? &kAvx512 : nullptr,
      has_avx2_vnni() ? &kAvx2Vnni : nullptr,
      has_avx2() ? &kAvx2 : nullptr,
#elif defined(__aarch64__)
      has_neon_dot() ? &kNeonDot : nullptr,
#endif
      &kPortable,
  };
  for (const Kernels* each : known) {
    if (each == nullptr || each->name == nullptr) continue;  // not this processor's, not compiled
    if (*name == 0 || std::strcmp(name, each->name) == 0) return each;
  }
  return nullptr;
}

}  // namespace slipstream
