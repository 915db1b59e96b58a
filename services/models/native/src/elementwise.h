// What is done to one token between products: norm, rotary embedding, the gate of the MLP.
#pragma once

#include <cmath>

#include "lanes.h"

namespace SLIPSTREAM_ISA {

// out = x * weight / sqrt(mean(x * x) + epsilon), over `count` elements. `out` may be `x`.
inline void norm(const float* x, const float* weight, int count, float epsilon, float* out) {
  Lanes squares = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Lanes value = load_some(x + i, count - i);
    squares = fma(value, value, squares);
  }
  const Lanes factor = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + epsilon));
  for (int i = 0; i < count; i += kLanes) {
    const Lanes value = mul(load_some(x + i, count - i), factor);
    store_some(out + i, mul(value, load_some(weight + i, count - i)), count - i);
  }
}

// Rotary embedding by halves, in place; cos and sin [dim / 2].
inline void rotate(float* head, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int count = half - i;
    const Lanes a = load_some(head + i, count), b = load_some(head + half + i, count);
    const Lanes c = load_some(cos + i, count), s = load_some(sin + i, count);
    store_some(head + i, fma(sub(zero(), b), s, mul(a, c)), count);
    store_some(head + half + i, fma(a, s, mul(b, c)), count);
  }
}

// out = silu(gate) * up. Gate and up come as tiles in turn: 16 of the one, 16 of the other.
inline void gate(const float* wide, int mlp, float* out) {
  const Lanes one = all(1.0f);
  for (int i = 0; i < mlp; i += kLanes) {
    const Lanes g = load(wide + 2 * i), up = load(wide + 2 * i + kLanes);
    const Lanes sigmoid_inverse = add(one, exp(sub(zero(), g)));
    store_some(out + i, mul(div(g, sigmoid_inverse), up), mlp - i);
  }
}

}  // namespace SLIPSTREAM_ISA
