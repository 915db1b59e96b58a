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

// The keys of the noise by which a position's token is drawn, as in `core/verify/keyed_noise.py`.
inline uint64_t mixed64(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}
inline Noise draw_noise(uint64_t seed, int64_t position) {
  constexpr uint64_t kDraw = 1;
  const uint64_t key = mixed64(seed ^ mixed64(static_cast<uint64_t>(position) << 8 | kDraw));
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
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

// The Gumbel noise of a token, of the uniform number of `core/verify/noise.py`.
inline double gumbel(uint32_t token, Noise noise) {
  const double number = (noise_bits(token, noise) + 0.5) * 0x1p-32;
  const float uniform = std::min(static_cast<float>(number), 1.0f - 0x1p-24f);
  return -std::log(-std::log1p(-static_cast<double>(uniform)));
}

// Keeps of the `found` tokens those whose sums of scores / temperature and noise may be the largest
// once they are rounded, which mostly is one; returns their number.
inline int64_t largest_sums(const float* scores, float best, float temperature, Noise noise,
                            int64_t found, int32_t* tokens) {
  constexpr double kRoom = 1e-3, kRounding = 1e-6;
  const double room = kRoom + kRounding * std::fabs(best);
  const auto sum_of = [&](int32_t token) {
    return (double{scores[token]} - best) / temperature + gumbel(token, noise);
  };
  double most = -INFINITY;
  for (int64_t i = 0; i < found; ++i) most = std::max(most, sum_of(tokens[i]));
  const auto is_less = [&](int32_t token) { return sum_of(token) < most - room; };
  return std::remove_if(tokens, tokens + found, is_less) - tokens;
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
  const float threshold = static_cast<float>(gumbel(static_cast<uint32_t>(first), noise)) - kRoom;
  const Lanes factor = all(1.0f / temperature), shift = all(threshold), top = all(*best);
  alignas(64) float bounds[kBlockTokens], uniforms[kBlockTokens];
  int64_t found = 0;
  for (int64_t start = 0; start < count; start += kBlockTokens) {
    const int size = static_cast<int>(std::min<int64_t>(kBlockTokens, count - start));
    uint32_t bits[kBlockTokens], least = UINT32_MAX;
    for (int i = 0; i < kBlockTokens; ++i) {
      bits[i] = noise_bits(static_cast<uint32_t>(start + i), noise) >> 1;
    }
    for (int i = 0; i < kBlockTokens; ++i) least = std::min(least, bits[i]);
    Lanes most = all(-INFINITY);
    for (int i = 0; i < size; i += kLanes) {
      most = max(most, load_partial(scores + start + i, size - i));
    }
    const float bound = std::exp((largest(most) - *best) / temperature - threshold);
    if (static_cast<float>(least) * kUnit > bound + kRoom * bound + 2 * kUnit) continue;
    for (int i = 0; i < kBlockTokens; ++i) {
      uniforms[i] = static_cast<float>(static_cast<int32_t>(bits[i])) * kUnit;
    }
    for (int i = 0; i < size; i += kLanes) {
      const Lanes score = load_partial(scores + start + i, size - i);
      store(bounds + i, exp(sub(mul(sub(score, top), factor), shift)));
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
  return largest_sums(scores, *best, temperature, noise, found, tokens);
}

}  // namespace SLIPSTREAM_ISA
