// What one call of a kernel computes: outputs of neighbouring tiles for neighbouring tokens.
#pragma once

#include "model.h"

namespace slipstream {

// The tokens of a product: as they are, or quantized where the weights are in blocks.
struct Tokens {
  const float* values;
  const QuantizedActivations* quantized;
};

// For `rows` tokens, from `tile` and `row` on. Meanwhile weights `ahead` bytes further are fetched:
// where tiles are gone through in turns, for other tokens each time, each turn fetches its share.
struct Work {
  const Matrix& matrix;
  const Tokens& tokens;
  int tile, rows;
  int64_t row;
  size_t ahead;
  int turn, turns;
};

}  // namespace slipstream
