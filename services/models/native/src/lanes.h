// Sixteen float lanes. Every operation gives the same bits on every instruction set: each lane is
// computed by IEEE operations in an order that is written here, and additions across lanes follow
// one tree. AVX-512 holds the lanes in one register, AVX2 in two; elsewhere they are an array.
#pragma once

#include <cmath>

#include "numbers.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace SLIPSTREAM_ISA {

constexpr int kLanes = 16;

// How far ahead weights are fetched, in bytes: they come from memory, as a rule.
constexpr int kAhead = 2048;

using slipstream::BFloat16;
using slipstream::Float16;
using slipstream::to_bfloat16;
using slipstream::to_float;

#if defined(__AVX512F__)

// Tokens times tiles of 16 outputs whose sums fit into registers.
constexpr int kMaxRows = 12, kMaxTiles = 2, kMaxCodedRows = 8;

struct Lanes {
  __m512 v;
};
inline Lanes zero() { return {_mm512_setzero_ps()}; }
inline Lanes all(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Lanes load(const BFloat16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
inline Lanes load(const int8_t* p) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(levels))};
}
inline Lanes load(const uint8_t* p) {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(levels))};
}
inline Lanes load(const Float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Pairs of bfloat16: the first, or the second, of each.
inline Lanes load_first(const BFloat16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Lanes load_second(const BFloat16* p) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), mask))};
}
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes round(Lanes a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2 to the power of whole numbers from -126 to 127.
inline Lanes power_of_two(Lanes n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
// Whole numbers from -128 to 127 as bytes.
inline void store(int8_t* p, Lanes a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline __m128 quarter(Lanes a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

#elif defined(__AVX2__)

constexpr int kMaxRows = 6, kMaxTiles = 1, kMaxCodedRows = 4;

struct Lanes {
  __m256 low, high;
};
inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 widened(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Lanes load(const BFloat16* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {widened(_mm_loadu_si128(halves)), widened(_mm_loadu_si128(halves + 1))};
}
inline __m256 widened(const int8_t* p) {
  const __m128i levels = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(levels));
}
inline Lanes load(const int8_t* p) { return {widened(p), widened(p + 8)}; }
inline __m256 widened(const uint8_t* p) {
  const __m128i levels = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(levels));
}
inline Lanes load(const uint8_t* p) { return {widened(p), widened(p + 8)}; }
inline Lanes load(const Float16* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline Lanes load_first(const BFloat16* p) {
  const __m256i* pairs = reinterpret_cast<const __m256i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs + 1), 16))};
}
inline Lanes load_second(const BFloat16* p) {
  const __m256i* pairs = reinterpret_cast<const __m256i*>(p);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs + 1), mask))};
}
inline void store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Lanes max(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes min(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Lanes round(Lanes a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
inline __m256 power_of_two(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Lanes power_of_two(Lanes n) { return {power_of_two(n.low), power_of_two(n.high)}; }
inline void store(int8_t* p, Lanes a) {
  const __m256i low = _mm256_cvtps_epi32(a.low), high = _mm256_cvtps_epi32(a.high);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  const __m128i first = _mm256_castsi256_si128(words), last = _mm256_extracti128_si256(words, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(first, last));
}
inline __m128 quarter(Lanes a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

#else

constexpr int kMaxRows = 4, kMaxTiles = 1, kMaxCodedRows = 4;

// Plain C++: everything is one IEEE operation for each lane. Only the fused one has to be named.
struct Lanes {
  float v[kLanes];
};
template <class F>
inline Lanes each(F f) {
  Lanes out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}
inline Lanes zero() { return each([](int) { return 0.0f; }); }
inline Lanes all(float x) { return each([=](int) { return x; }); }
inline Lanes load(const float* p) { return each([=](int i) { return p[i]; }); }
inline Lanes load(const BFloat16* p) { return each([=](int i) { return to_float(p[i]); }); }
inline Lanes load(const int8_t* p) { return each([=](int i) { return float(p[i]); }); }
inline Lanes load(const uint8_t* p) { return each([=](int i) { return float(p[i]); }); }
inline Lanes load(const Float16* p) { return each([=](int i) { return to_float(p[i]); }); }
inline Lanes load_first(const BFloat16* p) {
  return each([=](int i) { return to_float(p[2 * i]); });
}
inline Lanes load_second(const BFloat16* p) {
  return each([=](int i) { return to_float(p[2 * i + 1]); });
}
inline void store(float* p, Lanes a) { std::memcpy(p, a.v, sizeof a.v); }
#if defined(__ARM_NEON) && defined(__aarch64__)
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  Lanes out;
  for (int i = 0; i < kLanes; i += 4) {
    vst1q_f32(out.v + i, vfmaq_f32(vld1q_f32(c.v + i), vld1q_f32(a.v + i), vld1q_f32(b.v + i)));
  }
  return out;
}
#else
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
#endif
inline Lanes add(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Lanes sub(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Lanes mul(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Lanes div(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
// As the instructions have it: the second operand where either is not a number.
inline Lanes max(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes min(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes round(Lanes a) {
  return each([&](int i) { return std::nearbyint(a.v[i]); });
}
inline void store(int8_t* p, Lanes a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
inline Lanes power_of_two(Lanes n) {
  return each([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); });
}

#endif

// The largest of all lanes.
#if defined(__AVX2__)
inline float largest(Lanes a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a.v);
#else
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#endif
}
#else
inline float largest(Lanes a) {
  float out = a.v[0];
  for (float value : a.v) out = value > out ? value : out;
  return out;
}
#endif

// The sum of all lanes, by one tree: i and i + 8, i and i + 4, i and i + 2, ...
#if defined(__AVX2__)
inline float sum(Lanes a) {
  alignas(16) float q[4];
  _mm_store_ps(q, quarter(a));
  return (q[0] + q[2]) + (q[1] + q[3]);
}
#else
inline float sum(Lanes a) {
  float q[4];
  for (int i = 0; i < 4; ++i) q[i] = (a.v[i] + a.v[i + 8]) + (a.v[i + 4] + a.v[i + 12]);
  return (q[0] + q[2]) + (q[1] + q[3]);
}
#endif

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

// The first `count` lanes from memory, zeros behind them; and back.
template <class T>
inline Lanes load_some(const T* p, int count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}
inline void store_some(float* p, Lanes a, int count) {
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
