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

// A block taken apart: weight = scale * factor * code + minimum * minimum_factor. Factors are those
// of 16 or 32 elements each; where a kind has none they are 1.
struct Unpacked {
  Float16 scale, minimum;
  int8_t codes[kSuper];
  int8_t factors[kSuper / kPart], minimum_factors[kSuper / kGroup];
};
void unpack(Kind kind, const uint8_t* block, Unpacked& out);

// `count` weights as floats, from the start of a block.
void dequantise(Kind kind, const uint8_t* blocks, int64_t count, float* out);

}  // namespace slipstream
