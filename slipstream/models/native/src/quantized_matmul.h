// Products of tokens and weights that are both small integers with scales: weights in the blocks of
// GGUF files, tokens in 8 bits with a scale for every 32 elements of each. Sums of a block are
// integers; each output adds the blocks up in the order of its inputs.
#pragma once

#include <cmath>

#include "blocks.h"
#include "quantized_lanes.h"
#include "work.h"

namespace SLIPSTREAM_ISA {

using slipstream::QuantizedActivations;
using slipstream::is_quantized;
using slipstream::kFloat4;
using slipstream::kGroup;
using slipstream::kPart;
using slipstream::kSuper;
using slipstream::kThreeBits;
using slipstream::kUneven;
using slipstream::Kind;
using slipstream::Matrix;
using slipstream::bf16_factor;
using slipstream::Span;
using slipstream::Work;

// The forms in which products with weights of a kind take tokens.
enum Form { kFloat = 0, kBf16 = 1, kInt8 = 2 };
inline int form(Kind kind) {
  return is_quantized(kind) ? kInt8 : kind == Kind::kBFloat16 ? kBf16 : kFloat;
}

// Some of a token's elements, an even number but for the last ones, rounded to bfloat16.
inline void to_bf16(const float* x, int64_t row, Span some, QuantizedActivations& out) {
  uint32_t* words = out.words.data() + row * out.inputs;
#if defined(SLIPSTREAM_HAS_PAIRS)
  for (int64_t i = some.first / 2; i < some.last / 2; ++i) {
    words[i] = bf16_factor(x[2 * i]) | bf16_factor(x[2 * i + 1]) >> 16;
  }
  if (some.last % 2) words[some.last / 2] = bf16_factor(x[some.last - 1]);
#else
  for (int64_t i = some.first; i < some.last; ++i) words[i] = bf16_factor(x[i]);
#endif
}

// -128 times the sum of 16 codes; none where the token's elements are no numbers.
inline int32_t offset_of(float sum) {
  return std::fabs(sum) <= 128.0f * kPart ? static_cast<int32_t>(-128.0f * sum) : 0;
}

// The codes of some of a token's elements, whole groups of them: nearest multiples of a scale, of
// which the largest element is 127.
inline void to_int8(const float* x, int64_t row, Span some, QuantizedActivations& out) {
  const int inputs = out.inputs, groups = inputs / kGroup;
  for (int64_t g = some.first / kGroup; g < some.last / kGroup; ++g) {
    const Lanes a = load(x + g * kGroup), b = load(x + g * kGroup + kPart);
    const float amax = largest(max(max(a, sub(zero(), a)), max(b, sub(zero(), b))));
    const bool is_zero = amax < 1e-30f;  // or too small to divide by
    const Lanes factor = all(is_zero ? 0.0f : 127.0f / amax);
    const Lanes first = round(mul(a, factor)), second = round(mul(b, factor));
    int8_t* codes = out.codes.data() + row * inputs + g * kGroup;
    store(codes, first);
    store(codes + kPart, second);
    const float sums[] = {sum(first), sum(second)};
    int32_t* offsets = out.offsets.data() + (row * groups + g) * 3;
    offsets[0] = offset_of(sums[0]), offsets[1] = offset_of(sums[1]);
    offsets[2] = offsets[0] + offsets[1];
    const float scale = is_zero ? 0.0f : amax / 127.0f;
    out.scales[row * groups + g] = scale;
    out.sums[row * groups + g] = scale * (sums[0] + sums[1]);
  }
}

// A token in some of the forms: some of its elements, by default all.
inline void quantize(int forms, const float* x, int64_t row, Span some, QuantizedActivations& out) {
  if (forms & kBf16) to_bf16(x, row, some, out);
  if (forms & kInt8) to_int8(x, row, some, out);
}
inline void quantize(int forms, const float* x, int64_t row, QuantizedActivations& out) {
  quantize(forms, x, row, {0, out.inputs}, out);
}

// How wide codes are, the sums of their products, and what codes stand for.
struct Nibbles {
  using Sum = NibbleSum;
  static constexpr bool kIsNibbles = true;
  static Codes value(Codes codes) { return codes; }
};
struct Bytes {
  using Sum = ByteSum;
  static constexpr bool kIsNibbles = false;
};
// Nibbles that stand for the numbers of a table.
template <const int8_t (&TABLE)[16]>
struct Named {
  using Sum = ByteSum;
  static constexpr bool kIsNibbles = true;
  static Codes value(Codes codes) { return look_up(TABLE, codes); }
};

// Formats of weights: how many scales 32 inputs have, and where they are. `scales` are those of a
// tile; `at` counts them from its first input on.

// Weight = scale * code, or scale * code + minimum; 32 inputs have a scale, of type T.
template <class CODES, class T, bool HAS_MINIMUM>
struct Groups : CODES {
  static constexpr bool kHasMinimum = HAS_MINIMUM;
  static constexpr int kParts = 1, kNumbers = HAS_MINIMUM ? 2 : 1, kMaxGroups = kMaxRowGroups;
  const T* scales;
  explicit Groups(const uint8_t* p) : scales(reinterpret_cast<const T*>(p)) {}
  const void* place(int64_t at) const { return scales + at * kNumbers * kLanes; }
  Lanes number(int64_t at, int which) const {
    return load(scales + (at * kNumbers + which) * kLanes);
  }
};

// Weight = scale * factor * code, or scale * factor * code + minimum * its factor: 256 inputs have
// a scale, 32 inputs have PARTS factors.
template <class CODES, int PARTS, bool HAS_MINIMUM>
struct Supers : CODES {
  static constexpr bool kHasMinimum = HAS_MINIMUM;
  static constexpr int kParts = PARTS, kEach = kSuper / kGroup * PARTS;
  static constexpr int kNumbers = HAS_MINIMUM ? 2 : 1, kMaxGroups = 1;
  static constexpr size_t kHeader = kNumbers * sizeof(Float16) * kLanes;
  static constexpr size_t kBytes = kHeader + kNumbers * kEach * kLanes;
  const uint8_t* scales;
  explicit Supers(const uint8_t* p) : scales(p) {}
  const void* place(int64_t at) const { return scales + at * (kBytes / kEach); }
  Lanes number(int64_t at, int which) const {
    const uint8_t* own = scales + at / kEach * kBytes;
    const uint8_t* factors = own + kHeader + (at % kEach * kNumbers + which) * kLanes;
    return mul(load(reinterpret_cast<const Float16*>(own) + which * kLanes),
               load(reinterpret_cast<const int8_t*>(factors)));
  }
};

// Calls `work` with 0, 1, ... COUNT - 1, where need be without a loop.
template <class Sum, int COUNT, class F>
SLIPSTREAM_INLINE void each_of(const F& work) {
  if constexpr (Sum::kStoresInLoops) {
    unrolled<COUNT>(work);
  } else {
    for (int i = 0; i < COUNT; ++i) work(i);
  }
}

// The products of some tokens and tiles, block by block: of ROWS tokens, or of more, in groups of
// ROWS or of one less, for which a block's codes are unpacked once.
template <class Format, int ROWS, int TILES>
class QuantizedMatmul {
 public:
  explicit QuantizedMatmul(const Work& work)
      : work_(work),
        inputs_(work.tokens.quantized->inputs),
        groups_(inputs_ / kGroup),
        stride_(work.matrix.tile_bytes),
        codes_(work.matrix.data + work.tile * stride_),
        scales_(codes_ + groups_ * Format::kParts * kBytes),
        tokens_(work.tokens.quantized->codes.data() + work.row * inputs_),
        token_scales_(work.tokens.quantized->scales.data() + work.row * groups_),
        token_sums_(work.tokens.quantized->sums.data() + work.row * groups_),
        offsets_(work.tokens.quantized->offsets.data() + work.row * groups_ * 3) {}

  // Outputs [rows, TILES * 16], without the bias. Inlined, so that places are not read anew after
  // each store.
  SLIPSTREAM_INLINE void run(float* out) const {
    if constexpr (kHasGroups) {
      if (work_.rows > ROWS) return run_groups(out);
    }
    Lanes sums[ROWS * TILES];
    unrolled<ROWS * TILES>([&](auto i) { put<false>(zero(), i, sums, out); });
    int turn = work_.turn;
    for (int64_t at = 0; at < groups_ * Format::kParts; ++at) {
      fetch_next(at, turn);
      asm("" : "+r"(out));  // or else sums would be in two places
      Sum products[ROWS][TILES];
      multiply<ROWS, Format::kIsNibbles>(at, 0, codes_ + at * kBytes, products);
      add_scaled<ROWS, false>(at, 0, products, nullptr, sums, out);
    }
    if constexpr (kHoldsSums) {
      unrolled<ROWS * TILES>([&](auto i) { store(out + i * kLanes, sums[i]); });
    }
  }

 private:
  using Sum = typename Format::Sum;
  static constexpr int kInputs = kGroup / Format::kParts, kQuads = kInputs / kQuad;
  static constexpr size_t kBytes = kInputs * kLanes / (Format::kIsNibbles ? 2 : 1);
  static constexpr bool kHasGroups = Format::kMaxGroups > 1 && 2 * ROWS > kMaxQuantizedRows;

  SLIPSTREAM_INLINE void run_groups(float* out) const {
    const int rows = work_.rows, whole = rows - (ROWS - rows % ROWS) % ROWS * (ROWS - 1);
    for (int row = 0; row < rows; ++row) store(out + row * kLanes, zero());
    Codes room[kQuads];
    int turn = work_.turn;
    for (int64_t at = 0; at < groups_ * Format::kParts; ++at) {
      fetch_next(at, turn);
      const uint8_t* codes = codes_ + at * kBytes;
      if constexpr (Format::kIsNibbles) {
        each_quad<true>(codes, [&](int quad, const Codes* w) { room[quad] = *w; });
        codes = reinterpret_cast<const uint8_t*>(room);
        asm("" : "+r"(codes));  // or else each quad would be in a place of its own
      }
      Lanes numbers[Format::kNumbers];
      unrolled<Format::kNumbers>([&](auto i) { numbers[i] = Format(scales_).number(at, i); });
      const auto add = [&](auto count, int row) __attribute__((always_inline)) {
        Sum products[count][TILES];
        multiply<count, false>(at, row, codes, products);
        add_scaled<count, true>(at, row, products, numbers, nullptr, out + row * kLanes);
      };
      int row = 0;
      for (; row < whole; row += ROWS) add(std::integral_constant<int, ROWS>(), row);
      for (; row < rows; row += ROWS - 1) add(std::integral_constant<int, ROWS - 1>(), row);
    }
  }

  int64_t group(int64_t row, int64_t at) const { return row * groups_ + at / Format::kParts; }

  SLIPSTREAM_FETCHES void fetch_next(int64_t at, int& turn) const {
    if (--turn >= 0) return;
    turn = work_.turns - 1;
    for (int t = 0; t < TILES; ++t) {
      const size_t ahead = t * stride_ + work_.ahead;
      fetch<kBytes>(codes_ + at * kBytes + ahead);
      __builtin_prefetch(Format(scales_ + ahead).place(at));
    }
  }

  // Calls `work(quad, codes)` for the codes of a block of each tile, from `p` on: each quad once.
  template <bool ARE_PACKED, class F>
  SLIPSTREAM_INLINE void each_quad(const uint8_t* p, const F& work) const {
    if constexpr (ARE_PACKED) {
      each_of<Sum, kQuads / 2>([&](auto q) __attribute__((always_inline)) {
        Codes w[TILES], both[TILES];  // a byte has the codes of inputs half of the quads apart
        unrolled<TILES>([&](auto t) {
          both[t] = load_codes(p + t * stride_ + q * kQuadBytes);
          w[t] = Format::value(low_nibbles(both[t]));
        });
        work(q, w);
        unrolled<TILES>([&](auto t) { w[t] = Format::value(high_nibbles(both[t])); });
        work(q + kQuads / 2, w);
      });
    } else if constexpr (Format::kIsNibbles) {
      each_of<Sum, kQuads>([&](auto q) __attribute__((always_inline)) {
        const Codes w = load_codes(p + q * kQuadBytes);
        work(q, &w);
      });
    } else {
      for (int q = 0; q < kQuads; ++q) {
        Codes w[TILES];
        unrolled<TILES>([&](auto t) { w[t] = load_signed(p + t * stride_ + q * kQuadBytes); });
        work(q, w);
      }
    }
  }

  // The products of COUNT tokens from `row` on.
  template <int COUNT, bool ARE_PACKED>
  SLIPSTREAM_INLINE void multiply(int64_t at, int64_t row, const uint8_t* codes,
                                  Sum (&products)[COUNT][TILES]) const {
    const int8_t* tokens = tokens_ + row * inputs_ + at * kInputs;
    unrolled<COUNT>([&](auto r) {
      const int32_t offset = offsets_[group(row + r, at) * 3 + (Format::kParts == 1 ? 2 : at % 2)];
      unrolled<TILES>([&](auto t) { products[r][t].begin(offset); });
    });
    each_quad<ARE_PACKED>(codes, [&](int quad, const Codes* w) __attribute__((always_inline)) {
      unrolled<COUNT>([&](auto r) __attribute__((always_inline)) {
        const int8_t* four = tokens + r * inputs_ + quad * kQuad;
        unrolled<TILES>([&](auto t) __attribute__((always_inline)) {
          if constexpr (Sum::kStoresInLoops) {
            if (quad == 0) return products[r][t].start(w[t], four);
          }
          products[r][t].add(w[t], four);
        });
      });
    });
  }

  // The sum of a token's elements that a scale is for.
  float token_sum(int64_t row, int64_t at) const {
    const int64_t own = group(row, at);
    if constexpr (Format::kParts == 1) return token_sums_[own];
    return token_scales_[own] * (offsets_[own * 3 + at % 2] * (-1.0f / 128));
  }

  // Sums are in `out` where registers are for a block's products alone.
  static constexpr bool kHoldsSums = ROWS * TILES <= Sum::kMaxHeld;
  template <bool IS_GROUP>
  static void put(Lanes sum, int i, Lanes* sums, float* out) {
    if constexpr (kHoldsSums && !IS_GROUP) {
      sums[i] = sum;
    } else {
      store(out + i * kLanes, sum);
    }
  }

  template <int COUNT, bool IS_GROUP>
  SLIPSTREAM_INLINE void add_scaled(int64_t at, int64_t row, const Sum (&products)[COUNT][TILES],
                                    const Lanes* numbers, Lanes* sums, float* out) const {
    const auto add_tile = [&](auto t) __attribute__((always_inline)) {
      const Format format(scales_ + t * stride_);
      const Lanes scale = IS_GROUP ? numbers[0] : format.number(at, 0);
      Lanes minimum{};
      if constexpr (Format::kHasMinimum) minimum = IS_GROUP ? numbers[1] : format.number(at, 1);
      unrolled<COUNT>([&](auto r) {
        const int i = r * TILES + t;
        const Lanes factor = mul(scale, all(token_scales_[group(row + r, at)]));
        Lanes sum = kHoldsSums && !IS_GROUP ? sums[i] : load(out + i * kLanes);
        sum = fma(products[r][t].value(), factor, sum);
        if constexpr (Format::kHasMinimum) sum = fma(minimum, all(token_sum(row + r, at)), sum);
        put<IS_GROUP>(sum, i, sums, out);
      });
    };
    unrolled<TILES>(add_tile);
  }

  const Work& work_;
  const int64_t inputs_, groups_;
  const size_t stride_;
  const uint8_t *codes_, *scales_;
  const int8_t* tokens_;
  const float *token_scales_, *token_sums_;
  const int32_t* offsets_;
};

template <class Format, int ROWS, int TILES>
void multiply_codes(const Work& work, float* out) {
  QuantizedMatmul<Format, ROWS, TILES>(work).run(out);
}

}  // namespace SLIPSTREAM_ISA
