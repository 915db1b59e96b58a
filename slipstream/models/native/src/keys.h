// Keys of sixteen positions brought into lanes, and their products with queries.
#pragma once

#include <utility>

#include "lanes.h"

namespace SLIPSTREAM_ISA {

#if defined(__AVX512F__)

// Lanes of values that are weighed at once, queries and heads of one call, and blocks of keys that
// half as many queries are multiplied with at once: as many sums as hide how long one takes.
constexpr int kParts = 2, kMaxQueries = 6, kMaxHeads = 6, kManyBlocks = 4;
constexpr int kWords = 16;    // of 32 bits, in one register
constexpr int kColumns = 16;  // words of a key that are brought into lanes together

using Words = __m512i;
inline void store_words(float* p, Words a) { _mm512_storeu_si512(p, a); }
inline Words lower(Words a) { return _mm512_slli_epi32(a, 16); }
inline Words upper(Words a) {
  return _mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

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

// words[c][i]: word c of key i, from element `d` on.
template <class T>
inline void columns(const T* const* keys, int d, Words* words) {
  for (int i = 0; i < kWords; ++i) words[i] = _mm512_loadu_si512(keys[i] + d);
  transpose(words);
}

#elif defined(__AVX2__)

constexpr int kParts = 1, kMaxQueries = 6, kMaxHeads = 6, kManyBlocks = 2;
constexpr int kWords = 8, kColumns = 4;

using Words = __m256i;
inline void store_words(float* p, Words a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a);
}
inline Words lower(Words a) { return _mm256_slli_epi32(a, 16); }
inline Words upper(Words a) {
  return _mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000)));
}

// The same; keys 0 to 3 are in the lower halves of registers.
template <class T>
inline void columns(const T* const* keys, int d, Words* words) {
  const auto half = [&](int key) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[key] + d));
  };
  Words r[4], t[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(half(i)), half(i + 4), 1);
  }
  for (int i = 0; i < 4; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    words[2 * i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    words[2 * i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
  }
}

#else

constexpr int kParts = 1, kMaxQueries = 6, kMaxHeads = 6, kManyBlocks = 2;

#endif

#if defined(__AVX2__)

inline int transpose_whole(const float* const* keys, int dim, float* out) {
  int d = 0;
  for (; d + kColumns <= dim; d += kColumns) {
    for (int first = 0; first < kLanes; first += kWords) {
      Words words[kColumns];
      columns(keys + first, d, words);
      for (int i = 0; i < kColumns; ++i) store_words(out + (d + i) * kLanes + first, words[i]);
    }
  }
  return d;
}

// Two neighbours are one word.
inline int transpose_whole(const BFloat16* const* keys, int dim, float* out) {
  int d = 0;
  for (; d + 2 * kColumns <= dim; d += 2 * kColumns) {
    for (int first = 0; first < kLanes; first += kWords) {
      Words words[kColumns];
      columns(keys + first, d, words);
      for (int i = 0; i < kColumns; ++i) {
        float* dst = out + (d + 2 * i) * kLanes + first;
        store_words(dst, lower(words[i]));
        store_words(dst + kLanes, upper(words[i]));
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

// Blocks of sixteen keys that so many queries are multiplied with at once, where there are as many.
constexpr int blocks_for(int queries) {
  return queries <= kMaxQueries / 2 ? kManyBlocks : kManyBlocks / 2;
}

// dsts[q][0..] = scale * query q . each key of BLOCKS blocks [dim, 16].
template <int QUERIES, int BLOCKS>
inline void dots(const float* const* queries, const float* keys, int dim, float scale,
                 float* const* dsts) {
  Lanes sums[QUERIES][BLOCKS];
  unrolled<QUERIES * BLOCKS>([&](auto i) { sums[i / BLOCKS][i % BLOCKS] = zero(); });
  for (int d = 0; d < dim; ++d, keys += kLanes) {
    Lanes key[BLOCKS];
    unrolled<BLOCKS>([&](auto b) { key[b] = load(keys + b * dim * kLanes); });
    unrolled<QUERIES>([&](auto q) {
      const Lanes value = all(queries[q][d]);
      unrolled<BLOCKS>([&](auto b) { sums[q][b] = fma(value, key[b], sums[q][b]); });
    });
  }
  unrolled<QUERIES * BLOCKS>([&](auto i) {
    store(dsts[i / BLOCKS] + i % BLOCKS * kLanes, mul(sums[i / BLOCKS][i % BLOCKS], all(scale)));
  });
}

// The function for 1 to kMaxQueries queries and one block, or `blocks_for` as many queries.
template <int... QUERIES>
inline auto dots_for(int count, bool has_many, std::integer_sequence<int, QUERIES...>) {
  using Function = decltype(&dots<1, 1>);
  static constexpr Function single[] = {dots<QUERIES + 1, 1>...};
  static constexpr Function many[] = {dots<QUERIES + 1, blocks_for(QUERIES + 1)>...};
  return (has_many ? many : single)[count - 1];
}

}  // namespace SLIPSTREAM_ISA
