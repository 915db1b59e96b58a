#include "blocks.h"

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

Float16 half(const uint8_t* p) {
  Float16 out;
  std::memcpy(&out, p, sizeof out);
  return out;
}

// Exact, but for what gets too large: that becomes infinite.
Float16 times_minus_eight(Float16 value) {
  int magnitude = value.bits & 0x7fff;
  for (int i = 0; i < 3; ++i) {
    if (magnitude < 0x400) {
      magnitude *= 2;
    } else {
      magnitude = std::min(magnitude + 0x400, 0x7c00);
    }
  }
  return {static_cast<uint16_t>((~value.bits & 0x8000) | magnitude)};
}

// The lower halves of the bytes come first.
void unpack_nibbles(const uint8_t* bytes, int count, int8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + count] = bytes[i] >> 4;
  }
}

void unpack_q4_k(const uint8_t* block, Unpacked& out) {
  out.scale = half(block);
  out.minimum = half(block + 2);
  out.minimum.bits ^= 0x8000;  // it is to be subtracted
  const uint8_t* six = block + 4;  // pairs of factors of six bits, in twelve bytes
  for (int i = 0; i < 4; ++i) {
    out.factors[i] = six[i] & 63;
    out.minimum_factors[i] = six[i + 4] & 63;
    out.factors[i + 4] = (six[i + 8] & 15) | (six[i] >> 6 << 4);
    out.minimum_factors[i + 4] = (six[i + 8] >> 4) | (six[i + 4] >> 6 << 4);
  }
  for (int i = 0; i < 4; ++i) unpack_nibbles(block + 16 + 32 * i, 32, out.codes + 64 * i);
}

void unpack_q6_k(const uint8_t* block, Unpacked& out) {
  const uint8_t *low = block, *high = block + 128;
  for (int first = 0; first < kSuper; first += 128, low += 64, high += 32) {
    for (int i = 0; i < 128; ++i) {
      const int four = low[i % 64] >> (i / 64 * 4) & 15, two = high[i % 32] >> (i / 32 * 2) & 3;
      out.codes[first + i] = static_cast<int8_t>((four | two << 4) - 32);
    }
  }
  std::memcpy(out.factors, block + 192, sizeof out.factors);
  out.scale = half(block + 208);
}

float weight(Kind kind, const Unpacked& block, int i) {
  const float scale = to_float(block.scale), code = block.codes[i];
  switch (kind) {
    case Kind::kQ4_K: {
      const float least = to_float(block.minimum) * block.minimum_factors[i / kGroup];
      return scale * block.factors[i / kGroup] * code + least;
    }
    case Kind::kQ6_K: return scale * block.factors[i / kPart] * code;
    case Kind::kQ8_0: return scale * code;
    default: return scale * code + to_float(block.minimum);
  }
}

}  // namespace

BlockSize block_size(Kind kind) {
  switch (kind) {
    case Kind::kBFloat16:
    case Kind::kNarrowFloat32: return {1, 2};
    case Kind::kFloat32: return {1, 4};
    case Kind::kQ4_0: return {32, 18};
    case Kind::kQ4_1: return {32, 20};
    case Kind::kQ8_0: return {32, 34};
    case Kind::kQ4_K: return {256, 144};
    case Kind::kQ6_K: return {256, 210};
  }
  return {1, 0};
}

void unpack(Kind kind, const uint8_t* block, Unpacked& out) {
  switch (kind) {
    case Kind::kQ4_0:
      out.scale = half(block);
      out.minimum = times_minus_eight(out.scale);
      return unpack_nibbles(block + 2, 16, out.codes);
    case Kind::kQ4_1:
      out.scale = half(block);
      out.minimum = half(block + 2);
      return unpack_nibbles(block + 4, 16, out.codes);
    case Kind::kQ8_0:
      out.scale = half(block);
      std::memcpy(out.codes, block + 2, kGroup);
      return;
    case Kind::kQ4_K: return unpack_q4_k(block, out);
    case Kind::kQ6_K: return unpack_q6_k(block, out);
    default: return;
  }
}

void dequantise(Kind kind, const uint8_t* from, int64_t count, float* out) {
  if (kind == Kind::kFloat32) return static_cast<void>(std::memcpy(out, from, count * sizeof *out));
  if (kind == Kind::kBFloat16 || kind == Kind::kNarrowFloat32) {
    const BFloat16* narrow = reinterpret_cast<const BFloat16*>(from);
    std::transform(narrow, narrow + count, out, [](BFloat16 value) { return to_float(value); });
    return;
  }
  const BlockSize size = block_size(kind);
  Unpacked block;
  for (int64_t first = 0; first < count; first += size.elements, from += size.bytes) {
    unpack(kind, from, block);
    for (int i = 0; i < size.elements; ++i) out[first + i] = weight(kind, block, i);
  }
}

}  // namespace slipstream
