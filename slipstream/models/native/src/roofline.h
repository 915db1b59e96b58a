// What a processor can do at most, measured by loops that do nothing else.
#pragma once

#include "model.h"

namespace slipstream {

// Multiply-adds and bytes of weights that a token needs, and how many of each a model's team can do
// in a second with its kernels' instructions: those that the weights are multiplied by, in float32
// or in 8-bit integers, and reading the weights themselves.
struct Roofline {
  double macs, bytes, macs_per_s, bytes_per_s;
};
Roofline roofline(const Model& model, const Kernels& kernels);

}  // namespace slipstream
