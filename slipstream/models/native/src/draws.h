// Which tokens a draw can give: those whose Gumbel noise may lift them to the likeliest one's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::Noise;

// A token's 32 bits of noise, as in `core/verify/keyed_noise.py`.
inline uint32_t mixed(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x7feb352du;
  bits = (bits ^ bits >> 15) * 0x846ca68bu;
  return bits ^ bits >> 16;
}
inline uint32_t noise_bits(uint32_t token, Noise noise) {
  return mixed(mixed(token ^ noise.first) + noise.second) ^ 0x80000000u;
}

// The first of the largest of `scores`; -1 where one is no number, or the largest is infinite.
inline int64_t likeliest(const float* scores, int64_t count) {
  Lanes max_lanes = all(-INFINITY);
  int32_t others = 0;  // whether there is what is no number; as wide as scores are, for lanes
  for (int64_t i = 0; i < count; ++i) others |= scores[i] != scores[i];
  for (int64_t i = 0; i < count; i += kLanes) {
    const int size_here = static_cast<int>(std::min<int64_t>(kLanes, count - i));
    max_lanes = size_here == kLanes ? max(max_lanes, load(scores + i)) : max_lanes;
    for (int tail = 0; size_here < kLanes && tail < size_here; ++tail) {
      max_lanes = max(max_lanes, all(scores[i + tail]));
    }
  }
  const float best = largest(max_lanes);
  if (others != 0 || std::isinf(best)) return -1;
  return std::find(scores, scores + count, best) - scores;
}

// Tokens, ascending, among which is the one with the largest sum of scores / temperature and noise;
// returns their number, 0 where `likeliest` has none. With u the noise's uniform number, the sum
// reaches that of the likeliest token only if -log(1 - u), which is at least u, is at most e to the
// power of the distance. Rounding is left room for.
inline int64_t sampling_candidates(const float* scores, int64_t count, float temperature,
                                   Noise noise, float* best, int32_t* tokens) {
  constexpr int kBlockTokens = 256;
  constexpr float kUnit = 0x1p-31f, kRoom = 1e-3f;
  const int64_t first = likeliest(scores, count);
  if (first < 0) return 0;
  *best = scores[first];
  const double uniform = (noise_bits(static_cast<uint32_t>(first), noise) + 0.5) * 0x1p-32;
  const float threshold = static_cast<float>(-std::log(-std::log1p(-uniform))) - kRoom;
  const Lanes factor = all(1.0f / temperature), shift = all(threshold), top = all(*best);
  alignas(64) float bounds[kBlockTokens], uniforms[kBlockTokens];
  int64_t found = 0;
  for (int64_t start = 0; start < count; start += kBlockTokens) {
    const int size = static_cast<int>(std::min<int64_t>(kBlockTokens, count - start));
    for (int i = 0; i < size; i += kLanes) {
      const Lanes score = load_partial(scores + start + i, size - i);
      store(bounds + i, exp(sub(mul(sub(score, top), factor), shift)));
    }
    for (int i = 0; i < kBlockTokens; ++i) {
      const uint32_t bits = noise_bits(static_cast<uint32_t>(start + i), noise);
      uniforms[i] = static_cast<float>(static_cast<int32_t>(bits >> 1)) * kUnit;
    }
    for (int i = 0; i < size; i += kLanes) {
      const Lanes room = sub(add(load(bounds + i), all(kUnit)), load(uniforms + i));
      if (largest(room) < 0) continue;
      const int end = std::min(size, i + kLanes);
      for (int at = i; at < end; ++at) {
        if (uniforms[at] <= bounds[at] + kUnit) tokens[found++] = static_cast<int32_t>(start + at);
      }
    }
  }
  return found;
}

}  // namespace SLIPSTREAM_ISA
