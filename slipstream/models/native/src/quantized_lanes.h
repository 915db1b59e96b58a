// Products of small integers: the weights' codes for four inputs of each of 16 outputs at a time,
// times a token's codes for the same inputs. Integer sums are exact, so they are the same in every
// order and on every instruction set.
#pragma once

#include "lanes.h"

namespace SLIPSTREAM_ISA {

constexpr int kQuad = 4;                       // inputs that one operation adds up
constexpr int kQuadBytes = kLanes * kQuad;     // a quad of inputs: a byte for each output and input
constexpr int kMaxNibbleQuads = 8;  // quads of 4-bit codes for which 16-bit sums have room

// `kMaxHeld`: the most sums of floats that are variables while a block is computed; more of them are
// in memory meanwhile. All are variables where the compiler finds the better places.
constexpr int kAllSums = 99;
// `kStoresInLoops`: whether GCC stores all sums each time that a loop over quads begins anew.
struct CodeSum {
  static constexpr bool kStoresInLoops = false;
};

// A token's codes for a quad, read as one number.
using FourCodes = int8_t[kQuad];
inline int32_t four_codes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return four;
}

#if defined(__AVX512F__)

struct Codes {
  __m512i v;
};
inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Codes low_nibbles(Codes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Codes high_nibbles(Codes a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }

inline Codes as_signed(Codes a);
inline Codes load_signed(const uint8_t* p) { return as_signed(load_codes(p)); }
// What codes of 4 bits stand for, as signed codes.
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(as_signed({_mm512_broadcast_i32x4(values)}).v, a.v)};
}

#if defined(__AVX512VNNI__)

// The sum of unsigned codes times signed ones.
struct NibbleSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  __m512i sum;
  void begin(int32_t) { sum = _mm512_setzero_si512(); }
  void add(Codes w, const int8_t* four) {
    sum = _mm512_dpbusd_epi32(sum, w.v, _mm512_set1_epi32(four_codes(four)));
  }
  Lanes value() const { return {_mm512_cvtepi32_ps(sum)}; }
};

// Signed codes: 128 is added to each, and taken off beforehand, times the sum of the token's codes.
inline Codes as_signed(Codes a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }
struct ByteSum : NibbleSum {
  void begin(int32_t offset) { sum = _mm512_set1_epi32(offset); }
};

#else

struct NibbleSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  __m512i sum;  // of 16 bits
  void begin(int32_t) { sum = _mm512_setzero_si512(); }
  void add(Codes w, const int8_t* four) {
    sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w.v, _mm512_set1_epi32(four_codes(four))));
  }
  Lanes value() const {
    return {_mm512_cvtepi32_ps(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)))};
  }
};

inline Codes as_signed(Codes a) { return a; }
struct ByteSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  __m512i sum;
  void begin(int32_t) { sum = _mm512_setzero_si512(); }
  // The signs of the weights go to the token's codes: one factor has to be unsigned.
  void add(Codes w, const int8_t* four) {
    const __m512i x = _mm512_set1_epi32(four_codes(four));
    const __m512i turned =
        _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w.v), _mm512_setzero_si512(), x);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w.v), turned);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  Lanes value() const { return {_mm512_cvtepi32_ps(sum)}; }
};

#endif

#elif defined(__AVX2__)

struct Codes {
  __m256i low, high;  // of the first eight outputs, and of the others
};
inline Codes load_codes(const uint8_t* p) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline Codes low_nibbles(Codes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
inline Codes high_nibbles(Codes a) {
  return low_nibbles({_mm256_srli_epi16(a.low, 4), _mm256_srli_epi16(a.high, 4)});
}

inline Codes as_signed(Codes a);
inline Codes load_signed(const uint8_t* p) { return as_signed(load_codes(p)); }
inline Codes look_up(const int8_t* table, Codes a) {
  const __m128i own = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i twice = _mm256_broadcastsi128_si256(own), values = as_signed({twice, twice}).low;
  return {_mm256_shuffle_epi8(values, a.low), _mm256_shuffle_epi8(values, a.high)};
}

#if defined(__AVXVNNI__)

// The sum of unsigned codes times signed ones.
struct NibbleSum : CodeSum {
  static constexpr int kMaxHeld = 2;
  __m256i low, high;
  void begin(int32_t) { low = high = _mm256_setzero_si256(); }
  void add(Codes w, const int8_t* four) {
    const __m256i x = _mm256_set1_epi32(four_codes(four));
    low = _mm256_dpbusd_avx_epi32(low, w.low, x);
    high = _mm256_dpbusd_avx_epi32(high, w.high, x);
  }
  Lanes value() const { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
};

// Signed codes: 128 is added to each, and taken off beforehand, times the sum of the token's codes.
inline Codes as_signed(Codes a) {
  const __m256i sign = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(a.low, sign), _mm256_xor_si256(a.high, sign)};
}
struct ByteSum : NibbleSum {
  void begin(int32_t offset) { low = high = _mm256_set1_epi32(offset); }
};

#else

struct NibbleSum : CodeSum {
  static constexpr int kMaxHeld = 2;
  static constexpr bool kStoresInLoops = true;
  __m256i low, high;  // of 16 bits
  void begin(int32_t) { low = high = _mm256_setzero_si256(); }
  // Written out, as GCC would compute the products of all tokens first, which no registers hold.
  void start(const Codes& w, const int8_t* four) {
    __m256i x;
    asm volatile(
        "vpbroadcastd %3, %2\n\tvpmaddubsw %2, %4, %0\n\tvpmaddubsw %2, %5, %1"
        : "=&x"(low), "=x"(high), "=&x"(x)
        : "m"(*reinterpret_cast<const FourCodes*>(four)), "x"(w.low), "x"(w.high));
  }
  void add(const Codes& w, const int8_t* four) {
    __m256i x, product;
    asm volatile(
        "vpbroadcastd %4, %2\n\t"
        "vpmaddubsw %2, %5, %3\n\t"
        "vpaddw %3, %0, %0\n\t"
        "vpmaddubsw %2, %6, %2\n\t"
        "vpaddw %2, %1, %1"
        : "+x"(low), "+x"(high), "=&x"(x), "=&x"(product)
        : "m"(*reinterpret_cast<const FourCodes*>(four)), "x"(w.low), "x"(w.high));
  }
  Lanes value() const {
    const __m256i one = _mm256_set1_epi16(1);
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(low, one)),
            _mm256_cvtepi32_ps(_mm256_madd_epi16(high, one))};
  }
};

inline Codes as_signed(Codes a) { return a; }
struct ByteSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  __m256i low, high;
  void begin(int32_t) { low = high = _mm256_setzero_si256(); }
  // The signs of the weights go to the token's codes: one factor has to be unsigned. Written out, as
  // for nibbles.
  void add(const Codes& w, const int8_t* four) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i x, product;
    asm volatile(
        "vpbroadcastd %4, %2\n\t"
        "vpsignb %5, %2, %3\n\t"
        "vpmaddubsw %3, %7, %3\n\t"
        "vpmaddwd %3, %9, %3\n\t"
        "vpaddd %3, %0, %0\n\t"
        "vpsignb %6, %2, %2\n\t"
        "vpmaddubsw %2, %8, %2\n\t"
        "vpmaddwd %2, %9, %2\n\t"
        "vpaddd %2, %1, %1"
        : "+x"(low), "+x"(high), "=&x"(x), "=&x"(product)
        : "m"(*reinterpret_cast<const FourCodes*>(four)), "x"(w.low), "x"(w.high),
          "x"(_mm256_abs_epi8(w.low)), "x"(_mm256_abs_epi8(w.high)), "x"(one));
  }
  Lanes value() const { return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)}; }
};

#endif

#elif defined(__ARM_FEATURE_DOTPROD)

struct Codes {
  int8x16_t v[4];  // of four outputs each
};
inline Codes load_signed(const uint8_t* p) {
  const int8_t* codes = reinterpret_cast<const int8_t*>(p);
  return {{vld1q_s8(codes), vld1q_s8(codes + 16), vld1q_s8(codes + 32), vld1q_s8(codes + 48)}};
}
inline Codes load_codes(const uint8_t* p) { return load_signed(p); }
inline Codes low_nibbles(Codes a) {
  for (int8x16_t& codes : a.v) codes = vandq_s8(codes, vdupq_n_s8(15));
  return a;
}
inline Codes high_nibbles(Codes a) {
  for (int8x16_t& codes : a.v) {
    codes = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(codes), 4));
  }
  return a;
}
inline Codes look_up(const int8_t* table, Codes a) {
  const int8x16_t values = vld1q_s8(table);
  for (int8x16_t& codes : a.v) codes = vqtbl1q_s8(values, vreinterpretq_u8_s8(codes));
  return a;
}

struct ByteSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  int32x4_t sum[4];
  void begin(int32_t) {
    for (int32x4_t& each : sum) each = vdupq_n_s32(0);
  }
  void add(const Codes& w, const int8_t* four) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four_codes(four)));
    for (int i = 0; i < 4; ++i) sum[i] = vdotq_s32(sum[i], w.v[i], x);
  }
  Lanes value() const {
    return each([&](int i) { return vcvtq_f32_s32(sum[i]); });
  }
};
using NibbleSum = ByteSum;

#else

struct Codes {
  int8_t v[kQuadBytes];
};
inline Codes load_codes(const uint8_t* p) {
  Codes out;
  std::memcpy(out.v, p, sizeof out.v);
  return out;
}
inline Codes load_signed(const uint8_t* p) { return load_codes(p); }
inline Codes low_nibbles(Codes a) {
  for (int8_t& code : a.v) code &= 15;
  return a;
}
inline Codes high_nibbles(Codes a) {
  for (int8_t& code : a.v) code = static_cast<uint8_t>(code) >> 4;
  return a;
}
inline Codes look_up(const int8_t* table, Codes a) {
  for (int8_t& code : a.v) code = table[code];
  return a;
}

struct ByteSum : CodeSum {
  static constexpr int kMaxHeld = kAllSums;
  int32_t sum[kLanes];
  void begin(int32_t) { std::memset(sum, 0, sizeof sum); }
  void add(const Codes& w, const int8_t* four) {
    for (int i = 0; i < kQuadBytes; ++i) sum[i / kQuad] += w.v[i] * four[i % kQuad];
  }
  Lanes value() const {
    float out[kLanes];
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<float>(sum[i]);
    return load(out);
  }
};
using NibbleSum = ByteSum;

#endif

}  // namespace SLIPSTREAM_ISA
