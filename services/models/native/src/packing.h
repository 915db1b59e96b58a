#pragma once

#include "model.h"

namespace slipstream {

// A matrix as checkpoints have it: `values` [outputs, inputs] in the element type, or the blocks, of
// the kind; `bias` [outputs], or null.
struct Weights {
  Kind kind;
  int32_t outputs, inputs;
  const void* values;
  const float* bias;
};

Matrix packed(const Weights& weights, Arena& arena);

}  // namespace slipstream
