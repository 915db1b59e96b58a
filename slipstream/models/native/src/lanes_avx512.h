// The lanes of AVX-512: one register.
#pragma once

#include <immintrin.h>

namespace SLIPSTREAM_ISA {

// Tokens times tiles of 16 outputs whose sums fit into registers.
constexpr int kMaxRows = 12, kMaxTiles = 2, kMaxQuantizedRows = 8, kGoodQuantizedRows = 6,
              kMaxQuantizedTiles = 2, kMaxRowGroups = 1;
constexpr int kMaxTiledRows = kMaxRows;  // tokens that go with kMaxTiles at once

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
#if defined(__AVX512BF16__)
#define SLIPSTREAM_HAS_PAIRS
// Pairs of bfloat16 as they are. Their products are added to a sum one after the other, that of the
// second before that of the first, like fused multiply-adds but for subnormal numbers.
struct Pairs {
  __m512bh v;
};
inline Pairs load_pairs(const BFloat16* p) { return {(__m512bh)_mm512_loadu_si512(p)}; }
inline Pairs all_pairs(uint32_t pair) {
  return {(__m512bh)_mm512_set1_epi32(static_cast<int>(pair))};
}
inline Lanes add_products(Lanes sum, Pairs a, Pairs b) {
  return {_mm512_dpbf16_ps(sum.v, a.v, b.v)};
}
#endif
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
inline void store_quarters(float* q, Lanes a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  _mm_storeu_ps(q, _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}
inline float largest(Lanes a) { return _mm512_reduce_max_ps(a.v); }

}  // namespace SLIPSTREAM_ISA
