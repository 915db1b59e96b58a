// The blocks of small integers that GGUF files hold weights in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model.h"
#include "numbers.h"

namespace slipstream {

// Elements and bytes of one block; of plain elements, one.
struct BlockSize {
  int elements;
  size_t bytes;
};
BlockSize block_size(Kind kind);
size_t row_bytes(Kind kind, int64_t inputs);

// What codes of 4 bits stand for where that is not themselves: Q3_K, IQ4_NL and IQ4_XS, MXFP4.
inline constexpr int8_t kThreeBits[16] = {-4, -3, -2, -1, 0, 1, 2, 3};
inline constexpr int8_t kUneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kFloat4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// What a block of a kind consists of: codes of 4 or of 8 bits, `factors` for the scale of as many
// parts, or none, and a minimum, which then has factors as well.
struct Encoding {
  bool is_nibbles, has_minimum;
  int factors;
  const int8_t* table;  // what codes stand for; null: themselves
};
Encoding encoding_of(Kind kind);

// A block taken apart: weight = scale * factor * code + minimum * its factor. Scale and minimum
// have 16 bits: those of a Float16, or of a BFloat16 in MXFP4.
struct Unpacked {
  uint16_t scale, minimum;
  int8_t codes[kSuper];
  int8_t factors[kSuper / kPart], minimum_factors[kSuper / kPart];
};
void unpack(Kind kind, const uint8_t* block, Unpacked& out);

// The weights of a block.
void weights_of(Kind kind, const Unpacked& block, float* out);

// `count` weights as floats, from the start of a block.
void dequantise(Kind kind, const uint8_t* blocks, int64_t count, float* out);

}  // namespace slipstream
