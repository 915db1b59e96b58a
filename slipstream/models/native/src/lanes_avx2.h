// The lanes of AVX2: two registers.
#pragma once

#include <immintrin.h>

namespace SLIPSTREAM_ISA {

constexpr int kMaxRows = 6, kMaxTiles = 2, kMaxQuantizedRows = 6, kGoodQuantizedRows = 6,
              kMaxQuantizedTiles = 1, kMaxRowGroups = 4;
constexpr int kMaxTiledRows = 2;  // tokens that go with kMaxTiles at once

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
inline void store_quarters(float* q, Lanes a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  _mm_storeu_ps(q, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}
inline float largest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

}  // namespace SLIPSTREAM_ISA
