#include "blocks.h"

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

uint16_t half(const uint8_t* p) {
  uint16_t out;
  std::memcpy(&out, p, sizeof out);
  return out;
}

// What is subtracted in files is added here.
uint16_t negative(uint16_t bits) { return bits ^ 0x8000; }

// Exact, but for what gets too large: that becomes infinite.
uint16_t times_minus_eight(uint16_t bits) {
  int magnitude = bits & 0x7fff;
  for (int i = 0; i < 3; ++i) {
    if (magnitude < 0x400) {
      magnitude *= 2;
    } else {
      magnitude = std::min(magnitude + 0x400, 0x7c00);
    }
  }
  return static_cast<uint16_t>((~bits & 0x8000) | magnitude);
}

// The lower halves of the bytes come first.
void unpack_nibbles(const uint8_t* bytes, int count, int8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + count] = bytes[i] >> 4;
  }
}

// Adds some bits of each byte, those of `mask` from `first` on, to codes, `to` bits further up.
void add_bits(const uint8_t* bytes, int first, int mask, int to, int8_t* codes) {
  for (int i = 0; i < kGroup; ++i) codes[i] |= (bytes[i] >> first & mask) << to;
}

// Codes of five bits, the first of `least`; the fifth bits are in front of the others.
void unpack_five_bits(const uint8_t* bits, int least, int8_t* codes) {
  uint32_t fifth;
  std::memcpy(&fifth, bits, sizeof fifth);
  unpack_nibbles(bits + sizeof fifth, kPart, codes);
  for (int i = 0; i < kGroup; ++i) codes[i] += static_cast<int8_t>((fifth >> i & 1) * 16 + least);
}

// Scale, minimum, and pairs of factors of six bits, in twelve bytes.
void unpack_factors(const uint8_t* block, Unpacked& out) {
  out.scale = half(block);
  out.minimum = negative(half(block + 2));
  const uint8_t* six = block + 4;
  for (int i = 0; i < 4; ++i) {
    out.factors[i] = six[i] & 63;
    out.minimum_factors[i] = six[i + 4] & 63;
    out.factors[i + 4] = (six[i + 8] & 15) | (six[i] >> 6 << 4);
    out.minimum_factors[i + 4] = (six[i + 8] >> 4) | (six[i + 4] >> 6 << 4);
  }
}

void unpack_q4_k(const uint8_t* block, Unpacked& out) {
  unpack_factors(block, out);
  for (int i = 0; i < 4; ++i) unpack_nibbles(block + 16 + 32 * i, 32, out.codes + 64 * i);
}

void unpack_q5_k(const uint8_t* block, Unpacked& out) {
  unpack_factors(block, out);
  const uint8_t* fifth = block + 16;
  for (int i = 0; i < 4; ++i) unpack_nibbles(block + 48 + 32 * i, 32, out.codes + 64 * i);
  for (int i = 0; i < kSuper / kGroup; ++i) add_bits(fifth, i, 1, 4, out.codes + kGroup * i);
}

void unpack_q6_k(const uint8_t* block, Unpacked& out) {
  const uint8_t *low = block, *high = block + 128;
  for (int first = 0; first < kSuper; first += 128, low += 64, high += 32) {
    unpack_nibbles(low, 64, out.codes + first);
    for (int i = 0; i < 4; ++i) add_bits(high, 2 * i, 3, 4, out.codes + first + kGroup * i);
  }
  for (int8_t& code : out.codes) code -= 32;
  std::memcpy(out.factors, block + 192, sizeof out.factors);
  out.scale = half(block + 208);
}

// Codes of two bits: a byte has those of four inputs, 32 apart.
void unpack_two_bits(const uint8_t* bytes, int8_t* codes) {
  std::memset(codes, 0, kSuper);
  for (int i = 0; i < kSuper / kGroup; ++i) {
    add_bits(bytes + i / 4 * kGroup, i % 4 * 2, 3, 0, codes + kGroup * i);
  }
}

void unpack_q2_k(const uint8_t* block, Unpacked& out) {
  for (int i = 0; i < kSuper / kPart; ++i) {
    out.factors[i] = block[i] & 15;
    out.minimum_factors[i] = block[i] >> 4;
  }
  unpack_two_bits(block + 16, out.codes);
  out.scale = half(block + 80);
  out.minimum = negative(half(block + 82));
}

void unpack_q3_k(const uint8_t* block, Unpacked& out) {
  unpack_two_bits(block + 32, out.codes);
  for (int i = 0; i < kSuper / kGroup; ++i) add_bits(block, i, 1, 2, out.codes + kGroup * i);
  const uint8_t *low = block + 96, *high = low + 8;
  for (int i = 0; i < kSuper / kPart; ++i) {
    const int four = low[i % 8] >> (i / 8 * 4) & 15, two = high[i % 4] >> (i / 4 * 2) & 3;
    out.factors[i] = static_cast<int8_t>((four | two << 4) - 32);
  }
  out.scale = half(block + 108);
}

void unpack_iq4_xs(const uint8_t* block, Unpacked& out) {
  out.scale = half(block);
  const uint16_t high = half(block + 2);
  for (int i = 0; i < kSuper / kGroup; ++i) {
    const int four = block[4 + i / 2] >> (i % 2 * 4) & 15, two = high >> (2 * i) & 3;
    out.factors[i] = static_cast<int8_t>((four | two << 4) - 32);
    unpack_nibbles(block + 8 + 16 * i, kPart, out.codes + kGroup * i);
  }
}

// 2 to the power of `exponent` - 128; bfloat16 has all of these, as MXFP4 has them.
uint16_t power(uint8_t exponent) {
  return static_cast<uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

}  // namespace

BlockSize block_size(Kind kind) {
  switch (kind) {
    case Kind::kBFloat16:
    case Kind::kNarrowFloat32:
    case Kind::kFloat16: return {1, 2};
    case Kind::kFloat32: return {1, 4};
    case Kind::kQ4_0:
    case Kind::kIQ4_NL: return {32, 18};
    case Kind::kQ4_1: return {32, 20};
    case Kind::kQ5_0: return {32, 22};
    case Kind::kQ5_1: return {32, 24};
    case Kind::kQ8_0: return {32, 34};
    case Kind::kMXFP4: return {32, 17};
    case Kind::kQ2_K: return {256, 84};
    case Kind::kQ3_K: return {256, 110};
    case Kind::kQ4_K: return {256, 144};
    case Kind::kQ5_K: return {256, 176};
    case Kind::kQ6_K: return {256, 210};
    case Kind::kIQ4_XS: return {256, 136};
  }
  return {1, 0};
}

size_t row_bytes(Kind kind, int64_t inputs) {
  const BlockSize size = block_size(kind);
  return inputs / size.elements * size.bytes;
}

Encoding encoding_of(Kind kind) {
  switch (kind) {
    case Kind::kQ5_1: return {false, true, 0, nullptr};
    case Kind::kQ5_0:
    case Kind::kQ8_0: return {false, false, 0, nullptr};
    case Kind::kQ2_K: return {true, true, 16, nullptr};
    case Kind::kQ3_K: return {true, false, 16, kThreeBits};
    case Kind::kQ4_K: return {true, true, 8, nullptr};
    case Kind::kQ5_K: return {false, true, 8, nullptr};
    case Kind::kQ6_K: return {false, false, 16, nullptr};
    case Kind::kIQ4_NL: return {true, false, 0, kUneven};
    case Kind::kIQ4_XS: return {true, false, 8, kUneven};
    case Kind::kMXFP4: return {true, false, 0, kFloat4};
    default: return {true, true, 0, nullptr};
  }
}

void unpack(Kind kind, const uint8_t* block, Unpacked& out) {
  out.scale = half(block);
  switch (kind) {
    case Kind::kQ4_0:
      out.minimum = times_minus_eight(out.scale);
      return unpack_nibbles(block + 2, kPart, out.codes);
    case Kind::kQ4_1:
      out.minimum = half(block + 2);
      return unpack_nibbles(block + 4, kPart, out.codes);
    case Kind::kQ5_0: return unpack_five_bits(block + 2, -16, out.codes);
    case Kind::kQ5_1:
      out.minimum = half(block + 2);
      return unpack_five_bits(block + 4, 0, out.codes);
    case Kind::kQ8_0: return static_cast<void>(std::memcpy(out.codes, block + 2, kGroup));
    case Kind::kIQ4_NL: return unpack_nibbles(block + 2, kPart, out.codes);
    case Kind::kMXFP4:
      out.scale = power(*block);
      return unpack_nibbles(block + 1, kPart, out.codes);
    case Kind::kQ2_K: return unpack_q2_k(block, out);
    case Kind::kQ3_K: return unpack_q3_k(block, out);
    case Kind::kQ4_K: return unpack_q4_k(block, out);
    case Kind::kQ5_K: return unpack_q5_k(block, out);
    case Kind::kQ6_K: return unpack_q6_k(block, out);
    case Kind::kIQ4_XS: return unpack_iq4_xs(block, out);
    default: return;
  }
}

void weights_of(Kind kind, const Unpacked& block, float* out) {
  const Encoding encoding = encoding_of(kind);
  const int elements = block_size(kind).elements, parts = std::max(encoding.factors, 1);
  const auto number = [&](uint16_t bits) {
    return kind == Kind::kMXFP4 ? to_float(BFloat16{bits}) : to_float(Float16{bits});
  };
  for (int part = 0, i = 0; part < parts; ++part) {
    float scale = number(block.scale),
          minimum = encoding.has_minimum ? number(block.minimum) : 0.0f;
    if (encoding.factors > 0) scale *= block.factors[part];
    if (encoding.factors > 0 && encoding.has_minimum) minimum *= block.minimum_factors[part];
    for (const int last = i + elements / parts; i < last; ++i) {
      const float code =
          encoding.table == nullptr ? block.codes[i] : encoding.table[block.codes[i]];
      out[i] = encoding.has_minimum ? scale * code + minimum : scale * code;
    }
  }
}

void dequantise(Kind kind, const uint8_t* from, int64_t count, float* out) {
  const auto widen = [&](auto first) {
    using T = decltype(first);
    for (int64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      out[i] = to_float(value);
    }
  };
  if (kind == Kind::kFloat32) return static_cast<void>(std::memcpy(out, from, count * sizeof *out));
  if (kind == Kind::kFloat16) return widen(Float16{});
  if (!is_quantized(kind)) return widen(BFloat16{});
  const BlockSize size = block_size(kind);
  Unpacked block;
  for (int64_t first = 0; first < count; first += size.elements, from += size.bytes) {
    unpack(kind, from, block);
    weights_of(kind, block, out + first);
  }
}

}  // namespace slipstream
