// Products of tokens and weights that are both small integers with scales: weights in the blocks of
// GGUF files, tokens in 8 bits with a scale for every 32 elements of each. Sums of a block are
// integers; each output adds the blocks up in the order of its inputs.
#pragma once

#include "codes.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::Coded;
using slipstream::kGroup;
using slipstream::kPart;
using slipstream::kSuper;
using slipstream::Kind;
using slipstream::Matrix;

// A token's codes: nearest multiples of a scale, of which the largest element is 127.
inline void encode(const float* x, int64_t row, Coded& out) {
  const int inputs = out.inputs, groups = inputs / kGroup;
  for (int g = 0; g < groups; ++g) {
    const Lanes a = load(x + g * kGroup), b = load(x + g * kGroup + kPart);
    const float most = largest(max(max(a, sub(zero(), a)), max(b, sub(zero(), b))));
    const bool is_zero = most < 1e-30f;  // or too small to divide by
    const Lanes factor = all(is_zero ? 0.0f : 127.0f / most);
    const Lanes first = round(mul(a, factor)), second = round(mul(b, factor));
    int8_t* codes = out.codes.data() + row * inputs + g * kGroup;
    store(codes, first);
    store(codes + kPart, second);
    const float sums[] = {sum(first), sum(second)};
    int32_t* counts = out.counts.data() + (row * groups + g) * 2;
    counts[0] = static_cast<int32_t>(sums[0]), counts[1] = static_cast<int32_t>(sums[1]);
    const float scale = is_zero ? 0.0f : most / 127.0f;
    out.scales[row * groups + g] = scale;
    out.sums[row * groups + g] = scale * (sums[0] + sums[1]);
  }
}

// Formats of weights: how wide codes are, how many scales 32 inputs have, and where scales are.
// `scales` are those of a tile; `at` counts them from its first input on.

// Q4_0 and Q4_1: weight = scale * code + minimum.
struct Nibbles {
  using Sum = NibbleSum;
  static constexpr bool kIsNibbles = true, kHasMinimum = true;
  static constexpr int kParts = 1;
  const Float16* scales;
  explicit Nibbles(const uint8_t* p) : scales(reinterpret_cast<const Float16*>(p)) {}
  const void* place(int at) const { return scales + at * 2 * kLanes; }
  Lanes scale(int at) const { return load(scales + at * 2 * kLanes); }
  Lanes minimum(int at) const { return load(scales + (at * 2 + 1) * kLanes); }
};

// Q8_0: weight = scale * code.
struct Bytes {
  using Sum = ByteSum;
  static constexpr bool kIsNibbles = false, kHasMinimum = false;
  static constexpr int kParts = 1;
  const Float16* scales;
  explicit Bytes(const uint8_t* p) : scales(reinterpret_cast<const Float16*>(p)) {}
  const void* place(int at) const { return scales + at * kLanes; }
  Lanes scale(int at) const { return load(scales + at * kLanes); }
  Lanes minimum(int) const { return zero(); }
};

// Q4_K: weight = scale * factor * code + minimum * factor, 256 inputs to a scale and a minimum, 32
// to their factors.
struct SuperNibbles {
  using Sum = NibbleSum;
  static constexpr bool kIsNibbles = true, kHasMinimum = true;
  static constexpr int kParts = 1, kEach = kSuper / kGroup;
  static constexpr size_t kHeader = 2 * sizeof(Float16) * kLanes;
  static constexpr size_t kBytes = kHeader + 2 * kEach * kLanes;
  const uint8_t* scales;
  explicit SuperNibbles(const uint8_t* p) : scales(p) {}
  const void* place(int at) const { return scales + at * (kBytes / kEach); }
  Lanes part(int at, int which) const {
    const uint8_t* own = scales + at / kEach * kBytes;
    const uint8_t* factors = own + kHeader + (at % kEach * 2 + which) * kLanes;
    return mul(load(reinterpret_cast<const Float16*>(own) + which * kLanes), load(factors));
  }
  Lanes scale(int at) const { return part(at, 0); }
  Lanes minimum(int at) const { return part(at, 1); }
};

// Q6_K: weight = scale * factor * code, 256 inputs to a scale, 16 to a factor.
struct SuperBytes {
  using Sum = ByteSum;
  static constexpr bool kIsNibbles = false, kHasMinimum = false;
  static constexpr int kParts = 2, kEach = kSuper / kPart;
  static constexpr size_t kHeader = sizeof(Float16) * kLanes;
  static constexpr size_t kBytes = kHeader + kEach * kLanes;
  const uint8_t* scales;
  explicit SuperBytes(const uint8_t* p) : scales(p) {}
  const void* place(int at) const { return scales + at * (kBytes / kEach); }
  Lanes scale(int at) const {
    const uint8_t* own = scales + at / kEach * kBytes;
    const uint8_t* factors = own + kHeader + at % kEach * kLanes;
    return mul(load(reinterpret_cast<const Float16*>(own)),
               load(reinterpret_cast<const int8_t*>(factors)));
  }
  Lanes minimum(int) const { return zero(); }
};

// The codes of 32 inputs, or of 16, of one tile, from `p` on: each quad once.
template <class Format, class Add>
inline void each_quad(const uint8_t* p, const Add& add) {
  constexpr int quads = kGroup / kQuad / Format::kParts;
  if constexpr (Format::kIsNibbles) {
    for (int q = 0; q < quads / 2; ++q) {  // a byte has the codes of inputs 16 apart
      const Codes both = load_codes(p + q * kQuadBytes);
      add(q, low_nibbles(both));
      add(q + quads / 2, high_nibbles(both));
    }
  } else {
    for (int q = 0; q < quads; ++q) add(q, load_signed(p + q * kQuadBytes));
  }
}

template <class Format, int ROWS>
void multiply_codes(const Matrix& m, int tile, const Coded& x, int64_t row, float* out) {
  constexpr int inputs_each = kGroup / Format::kParts;
  constexpr size_t bytes = inputs_each * kLanes / (Format::kIsNibbles ? 2 : 1);
  const int inputs = m.inputs, groups = inputs / kGroup;
  const uint8_t* codes = m.data.get() + tile * m.tile_bytes();
  const uint8_t* scales = codes + inputs / inputs_each * bytes;
  const Format format(scales), next(scales + m.tile_bytes());  // of a tile to be looked at later
  Lanes sums[ROWS];
  for (Lanes& sum : sums) sum = zero();
  for (int at = 0; at < groups * Format::kParts; ++at, codes += bytes) {
    const int group = at / Format::kParts;
    const int8_t* own = x.codes.data() + row * inputs + at * inputs_each;
    typename Format::Sum products[ROWS];
    for (size_t ahead = 0; ahead < bytes; ahead += 64) __builtin_prefetch(codes + kAhead + ahead);
    __builtin_prefetch(next.place(at));
    each_quad<Format>(codes, [&](int quad, Codes w) {
      for (int r = 0; r < ROWS; ++r) {
        products[r].add(w, four_codes(own + r * inputs + quad * kQuad));
      }
    });
    const Lanes scale = format.scale(at), minimum = format.minimum(at);
    for (int r = 0; r < ROWS; ++r) {
      const int64_t of_token = (row + r) * groups + group;
      const int32_t* counts = x.counts.data() + of_token * 2;
      const int32_t count = Format::kParts == 1 ? counts[0] + counts[1] : counts[at % 2];
      const Lanes factor = mul(scale, all(x.scales[of_token]));
      sums[r] = fma(products[r].value(count), factor, sums[r]);
      if (Format::kHasMinimum) sums[r] = fma(minimum, all(x.sums[of_token]), sums[r]);
    }
  }
  for (int r = 0; r < ROWS; ++r) store(out + r * kLanes, sums[r]);
}

}  // namespace SLIPSTREAM_ISA
