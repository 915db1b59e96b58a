// Narrow floating-point numbers, as weights and caches hold them.
#pragma once

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

}  // namespace slipstream
