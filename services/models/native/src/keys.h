// Keys of sixteen positions brought into lanes, and their products with queries.
#pragma once

#include "lanes.h"

namespace SLIPSTREAM_ISA {

#if defined(__AVX512F__)
constexpr int kMaxQueries = 6, kMaxHeads = 3, kParts = 4;
#else
constexpr int kMaxQueries = 6, kMaxHeads = 3, kParts = 2;
#endif

#if defined(__AVX512F__)

// Rows of 16 words become columns.
inline void transpose(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

inline int transpose_whole(const float* const* keys, int dim, float* out) {
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) {
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_loadu_si512(keys[i] + d);
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) _mm512_storeu_si512(out + (d + i) * kLanes, rows[i]);
  }
  return d;
}

// Two neighbours are one word.
inline int transpose_whole(const BFloat16* const* keys, int dim, float* out) {
  int d = 0;
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (; d + 2 * kLanes <= dim; d += 2 * kLanes) {
    __m512i rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_loadu_si512(keys[i] + d);
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) {
      float* goal = out + (d + 2 * i) * kLanes;
      _mm512_storeu_si512(goal, _mm512_slli_epi32(rows[i], 16));
      _mm512_storeu_si512(goal + kLanes, _mm512_and_si512(rows[i], mask));
    }
  }
  return d;
}

#elif defined(__AVX2__)

// Rows of 8 words become columns.
inline void transpose(__m256i* r) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  __m256i u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
  }
}

inline int transpose_whole(const float* const* keys, int dim, float* out) {
  int d = 0;
  for (; d + 8 <= dim; d += 8) {
    for (int half = 0; half < kLanes; half += 8) {
      __m256i rows[8];
      for (int i = 0; i < 8; ++i) {
        rows[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys[half + i] + d));
      }
      transpose(rows);
      for (int i = 0; i < 8; ++i) {
        float* goal = out + (d + i) * kLanes + half;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(goal), rows[i]);
      }
    }
  }
  return d;
}

inline int transpose_whole(const BFloat16* const* keys, int dim, float* out) {
  int d = 0;
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  for (; d + 16 <= dim; d += 16) {
    for (int half = 0; half < kLanes; half += 8) {
      __m256i rows[8];
      for (int i = 0; i < 8; ++i) {
        rows[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys[half + i] + d));
      }
      transpose(rows);
      for (int i = 0; i < 8; ++i) {
        __m256i* goal = reinterpret_cast<__m256i*>(out + (d + 2 * i) * kLanes + half);
        _mm256_storeu_si256(goal, _mm256_slli_epi32(rows[i], 16));
        _mm256_storeu_si256(goal + 2, _mm256_and_si256(rows[i], mask));
      }
    }
  }
  return d;
}

#else

template <class T>
inline int transpose_whole(const T* const*, int, float*) {
  return 0;
}

#endif

inline float as_float(float value) { return value; }
inline float as_float(BFloat16 value) { return to_float(value); }

// out [dim, 16]: the elements of sixteen keys.
template <class T>
inline void transpose(const T* const* keys, int dim, float* out) {
  for (int d = transpose_whole(keys, dim, out); d < dim; ++d) {
    for (int i = 0; i < kLanes; ++i) out[d * kLanes + i] = as_float(keys[i][d]);
  }
}

// goals[q][0..15] = scale * query q . each of sixteen keys [dim, 16].
template <int QUERIES>
inline void dots(const float* const* queries, const float* keys, int dim, float scale,
                 float* const* goals) {
  Lanes sums[QUERIES];
  for (Lanes& sum : sums) sum = zero();
  for (int d = 0; d < dim; ++d) {
    const Lanes key = load(keys + d * kLanes);
    for (int q = 0; q < QUERIES; ++q) sums[q] = fma(all(queries[q][d]), key, sums[q]);
  }
  for (int q = 0; q < QUERIES; ++q) store(goals[q], mul(sums[q], all(scale)));
}

}  // namespace SLIPSTREAM_ISA
