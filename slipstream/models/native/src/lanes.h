// Sixteen float lanes. Every operation gives the same bits on every instruction set: each lane is
// computed by IEEE operations in an order that is written here, and additions across lanes follow
// one tree. A header for each instruction set has the operations; the others follow here.
#pragma once

#include <type_traits>
#include <utility>

#include "numbers.h"

namespace SLIPSTREAM_ISA {

constexpr int kLanes = 16;

using slipstream::BFloat16;
using slipstream::Float16;
using slipstream::to_bfloat16;
using slipstream::to_float;

}  // namespace SLIPSTREAM_ISA

#if defined(__AVX512F__)
#include "lanes_avx512.h"
#elif defined(__AVX2__)
#include "lanes_avx2.h"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include "lanes_neon.h"
#else
#include "lanes_plain.h"
#endif

namespace SLIPSTREAM_ISA {

// Calls `work` with the constants 0, 1, ... COUNT - 1. Compilers unroll loops over arrays of sums
// only after they have decided that these lie in memory; here there is no loop.
#define SLIPSTREAM_INLINE inline __attribute__((always_inline))
template <class F, int... I>
SLIPSTREAM_INLINE void unrolled(const F& work, std::integer_sequence<int, I...>) {
  (work(std::integral_constant<int, I>()), ...);
}
template <int COUNT, class F>
SLIPSTREAM_INLINE void unrolled(const F& work) {
  unrolled(work, std::make_integer_sequence<int, COUNT>());
}

// The sum of all lanes, by one tree: i and i + 8, i and i + 4, i and i + 2, ...
inline float sum(Lanes a) {
  float q[4];
  store_quarters(q, a);
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// Weights of a tile: those of two inputs. In bfloat16 they lie in pairs, for then one operation
// each makes floats of them.
template <class T>
inline Lanes load_first(const T* p) {
  return load(p);
}
template <class T>
inline Lanes load_second(const T* p) {
  return load(p + kLanes);
}

// Brings so many bytes nearer. A function that does nothing else has no effect in GCC's eyes, and
// calls of it are left out: it has to be a part of its caller, and so have those that only call it.
#define SLIPSTREAM_FETCHES SLIPSTREAM_INLINE
template <size_t BYTES>
SLIPSTREAM_FETCHES void fetch(const uint8_t* p) {
  for (size_t line = 0; line < BYTES; line += 64) __builtin_prefetch(p + line);
}

// The first `count` lanes from memory, zeros behind them; and back.
template <class T>
inline Lanes load_partial(const T* p, int count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}
inline void store_partial(float* p, Lanes a, int count) {
  if (count >= kLanes) return store(p, a);
  float padded[kLanes];
  store(padded, a);
  std::memcpy(p, padded, count * sizeof(float));
}

// e to the power of x, for x up to 88; the polynomial of Cephes' expf, within 2 units in the last
// place.
inline Lanes exp(Lanes x) {
  x = max(min(x, all(88.0f)), all(-87.0f));
  const Lanes n = round(mul(x, all(1.44269504f)));
  x = fma(n, all(-0.693359375f), x);
  x = fma(n, all(2.12194440e-4f), x);
  Lanes p = all(1.9875691500e-4f);
  for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                     5.0000001201e-1f}) {
    p = fma(p, x, all(next));
  }
  p = add(fma(p, mul(x, x), x), all(1.0f));
  return mul(p, power_of_two(n));
}

}  // namespace SLIPSTREAM_ISA
