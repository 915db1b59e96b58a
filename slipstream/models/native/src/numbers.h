// Narrow floating-point numbers, as weights and caches hold them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace slipstream {

// The upper half of a float32.
struct BFloat16 {
  uint16_t bits;
};

inline float to_float(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// IEEE half precision.
struct Float16 {
  uint16_t bits;
};

inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  float out;
  if (exponent == 0) {
    out = static_cast<float>(fraction) * 0x1p-24f;  // subnormal, and so exact
    return sign ? -out : out;
  }
  const uint32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to the nearest, ties to even.
inline BFloat16 to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// Factors of products in bfloat16, as a float's bits. Tokens below 2^-40 are taken for zero, and
// weights below 2^-60: so every sum of products is a multiple of 2^-114, and none is subnormal,
// where processors differ.
inline uint32_t factor_bits(float value, float least) {
  const uint32_t rounded = to_bfloat16(value).bits;
  return std::fabs(value) < least ? 0 : rounded << 16;
}
inline uint32_t bf16_factor(float value) { return factor_bits(value, 0x1p-40f); }
inline uint32_t weight_factor(float value) { return factor_bits(value, 0x1p-60f); }

// Rounds likewise; what is too large becomes infinite.
inline Float16 to_float16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};  // not a number
  if (bits >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (bits < 0x38800000) {  // subnormal: the sum's last bits count units of 2 to the power of -24
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof bits);
    return {static_cast<uint16_t>(sign | (bits - 0x3f000000))};
  }
  const uint32_t rounded = bits + 0xfff + (bits >> 13 & 1);
  return {static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13)};
}

}  // namespace slipstream
