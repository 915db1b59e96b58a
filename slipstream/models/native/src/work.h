// What one call of a kernel computes: outputs of neighbouring tiles for neighbouring tokens.
#pragma once

#include "model.h"

namespace slipstream {

// The tokens of a product: as they are, or quantized where the weights are in blocks.
struct Tokens {
  const float* values;
  const QuantizedActivations* quantized;
};

// From `tile` and `row` on. Meanwhile the weights `ahead` bytes further on are fetched. Where the
// same tiles are gone through in turns, for other tokens each time, each turn fetches its share.
struct Work {
  const Matrix& matrix;
  const Tokens& tokens;
  int tile;
  int64_t row;
  size_t ahead;
  int turn, turns;
};

}  // namespace slipstream
