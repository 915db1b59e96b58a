// What is done to one token between products: norm, rotary embedding, weights of an attention, the
// gate of the MLP.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"
#include "threads.h"

namespace SLIPSTREAM_ISA {

// out = x * weight / sqrt(mean(x * x) + epsilon), over `count` elements. `out` may be `x`.
inline void rms_norm(const float* x, const float* weight, int count, float epsilon, float* out) {
  Lanes squares = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Lanes value = load_partial(x + i, count - i);
    squares = fma(value, value, squares);
  }
  const Lanes factor = all(1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + epsilon));
  for (int i = 0; i < count; i += kLanes) {
    const Lanes value = mul(load_partial(x + i, count - i), factor);
    store_partial(out + i, mul(value, load_partial(weight + i, count - i)), count - i);
  }
}

// Rotary embedding by halves, in place; cos and sin [dim / 2].
inline void rope(float* head, const float* cos, const float* sin, int dim) {
  const int half = dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int count = half - i;
    const Lanes a = load_partial(head + i, count), b = load_partial(head + half + i, count);
    const Lanes c = load_partial(cos + i, count), s = load_partial(sin + i, count);
    store_partial(head + i, fma(sub(zero(), b), s, mul(a, c)), count);
    store_partial(head + half + i, fma(a, s, mul(b, c)), count);
  }
}

// 2 * sqrt(2 / pi) * (x + 0.044715 * x^3): GELU, in its form with tanh, is x * sigmoid of that.
inline Lanes gelu_exponent(Lanes x) {
  constexpr float kLinear = 1.5957691216f, kCubic = 0.0713548162726f;
  return mul(x, fma(mul(x, x), all(kCubic), all(kLinear)));
}

// out = silu(gate) * up, or gelu(gate) * up, of some elements, from a whole tile on. Gate and up
// come as tiles in turn: 16 of the one, 16 of the other.
inline void glu(const float* wide, slipstream::Span some, bool is_gelu, float* out) {
  const Lanes one = all(1.0f);
  for (int i = static_cast<int>(some.first); i < some.last; i += kLanes) {
    const Lanes g = load(wide + 2 * i), up = load(wide + 2 * i + kLanes);
    const Lanes sigmoid_inverse = add(one, exp(sub(zero(), is_gelu ? gelu_exponent(g) : g)));
    store_partial(out + i, mul(div(g, sigmoid_inverse), up), static_cast<int>(some.last) - i);
  }
}

// x *= factor.
inline void multiply_by(float factor, int count, float* x) {
  for (int i = 0; i < count; i += kLanes) {
    store_partial(x + i, mul(load_partial(x + i, count - i), all(factor)), count - i);
  }
}

// x += factor * y, of `count` elements up to 16.
inline void add_partial(float factor, Lanes y, int count, float* x) {
  store_partial(x, add(load_partial(x, count), mul(y, all(factor))), count);
}

// Turns scores into weights that are still to be divided by the number that it returns. Positions
// from `first` to `hidden` weigh nothing. A position's lane is the same whatever is hidden.
inline float exp_and_sum(float* scores, int64_t first, int64_t hidden, int64_t count) {
  const int64_t begin = hidden / kLanes * kLanes;
  std::fill(scores + first, scores + begin, 0.0f);
  std::fill(scores + begin, scores + hidden, scores[hidden]);
  Lanes max_lanes = all(scores[hidden]);
  for (int64_t p = begin; p < count; p += kLanes) {
    for (int64_t i = count; i < p + kLanes; ++i) scores[i] = scores[hidden];
    max_lanes = max(load(scores + p), max_lanes);
  }
  const Lanes top = all(largest(max_lanes));
  Lanes total = zero();
  for (int64_t p = begin; p < count; p += kLanes) {
    store(scores + p, exp(sub(load(scores + p), top)));
    for (int64_t i = p; i < hidden; ++i) scores[i] = 0.0f;
    for (int64_t i = count; i < p + kLanes; ++i) scores[i] = 0.0f;
    total = add(total, load(scores + p));
  }
  return sum(total);
}

}  // namespace SLIPSTREAM_ISA
