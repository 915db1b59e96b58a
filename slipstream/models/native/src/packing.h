#pragma once

#include "model.h"

namespace slipstream {

// A matrix as checkpoints have it: `values` [outputs, inputs] in the element type, or the blocks,
// of the kind, of so many bytes; `bias` [bias_size], as many as outputs, or null.
struct Weights {
  Kind kind;
  int32_t outputs, inputs;
  const void* values;
  int64_t bytes;
  const float* bias;
  int64_t bias_size;
};

// Whether values and bias are of a kind, and as long as the sizes say.
bool is_whole(const Weights& weights);

// A matrix that is whole, in the order in which products read it; the team shares the work.
Matrix packed(const Weights& weights, Arena& arena, Team& team);

// All weights one by one, in float32 or rounded to bfloat16; the team shares the work.
void dequantise(const Weights& weights, Team& team, bool is_bfloat16, void* out);

// The weights of one output as they were before they were packed; with kBFloat16 where that is
// exact.
void unpack_row(const Matrix& m, int64_t output, float* out);

}  // namespace slipstream
