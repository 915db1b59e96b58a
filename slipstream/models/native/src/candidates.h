// Candidates of a draft's positions: the best of a row of logits, and numbers of its distribution.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "draws.h"

namespace SLIPSTREAM_ISA {

using slipstream::RankedRows;
using slipstream::Ranking;

constexpr int kRankBlock = 64;  // values with a maximum of their own

// The natural logarithm of a normal number above 0, the polynomial of Cephes' logf; without a
// branch, for loops that the compiler makes lanes of.
inline float natural_log(float x) {
  constexpr uint32_t kRootHalf = 0x3f3504f3;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x3f800000 - kRootHalf;
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  bits = (bits & 0x7fffff) + kRootHalf;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  f -= 1.0f;
  const float square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square - 2.12194440e-4f * exponent - 0.5f * square;
  return f + p + 0.693359375f * exponent;
}

// Adds the Gumbel noise of `count` tokens, as in `core/verify/noise.py`; in operations that the
// compiler has lanes for.
inline void add_noise(Noise noise, const int64_t* ids, int64_t first, int count, float* values) {
  constexpr uint32_t kMost = 0xffffff7f;  // more is rounded to 1, and then to the number below
  alignas(64) uint32_t bits[kRankBlock];
  for (int i = 0; i < count; ++i) {
    const int64_t token = ids == nullptr ? first + i : ids[first + i];
    bits[i] = std::min(noise_bits(static_cast<uint32_t>(token), noise), kMost);
  }
  for (int i = 0; i < count; ++i) {
    // Half a unit more than the bits count, rounded once: both halves are exact.
    const float upper = static_cast<float>(static_cast<int32_t>(bits[i] >> 16));
    const float lower = static_cast<float>(static_cast<int32_t>(bits[i] & 0xffff));
    const float uniform = (upper * 0x1p16f + (lower + 0.5f)) * 0x1p-32f;
    const float rest = 1.0f - uniform, lost = (rest - 1.0f + uniform) / rest;
    values[i] -= natural_log(lost - natural_log(rest));
  }
}

// The values [size] that candidates are ranked by, behind them -inf to whole blocks; `maxima` are
// those of the blocks. Returns whether all are numbers.
inline bool rank_values(const float* logits, int64_t size, const Ranking& by, const int64_t* ids,
                        float* values, float* maxima) {
  bool are_numbers = true;
  for (int64_t first = 0; first < size; first += kRankBlock, values += kRankBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kRankBlock, size - first));
    for (int i = 0; i < count; ++i) values[i] = logits[first + i] * by.factor;
    if (by.is_sampled) add_noise(by.noise, ids, first, count, values);
    std::fill(values + count, values + kRankBlock, -INFINITY);
    for (int i = 0; i < kRankBlock; ++i) are_numbers &= values[i] == values[i];
    Lanes most = load(values);
    for (int i = kLanes; i < kRankBlock; i += kLanes) most = max(most, load(values + i));
    *maxima++ = largest(most);
  }
  return are_numbers;
}

// Sums of the softmax of some values: of its weights, relative to the best, and of each weight
// times its logarithm.
struct Mass {
  float weights, logs;
};
inline Mass mass_of(const float* values, int64_t size, float best) {
  const Lanes top = all(best), least = all(-87.0f);
  Lanes weights = zero(), logs = zero();
  for (int64_t i = 0; i < size; i += kLanes) {
    const Lanes relative = max(sub(load(values + i), top), least), weight = exp(relative);
    weights = add(weights, weight);
    logs = fma(weight, relative, logs);
  }
  return {sum(weights), sum(logs)};
}

// The column of the best value, the first of equals, which is taken out; -1 where none is left.
inline int64_t take_best(float* values, float* maxima, int64_t blocks, float* value) {
  const float* block = std::max_element(maxima, maxima + blocks);
  *value = *block;
  if (std::isinf(*value)) return -1;
  float* own = values + (block - maxima) * kRankBlock;
  float* found = std::find(own, own + kRankBlock, *value);
  *found = -INFINITY;
  maxima[block - maxima] = *std::max_element(own, own + kRankBlock);
  return found - values;
}

inline int64_t rank_blocks(int64_t size) { return (size + kRankBlock - 1) / kRankBlock; }
// Floats that ranking a row takes besides, with so many tokens outside of the head.
inline int64_t rank_room(int64_t size, int64_t others) {
  return (rank_blocks(size) + rank_blocks(others)) * (kRankBlock + 1);
}

// Writes the row of some logits [size], and of those of `others`, which follow them; without a
// score, and without numbers where they are no distribution.
inline void rank_row(const float* logits, int64_t size, const std::vector<int64_t>& others,
                     const Ranking& by, const RankedRows& out, float* row, float* values) {
  const int64_t num_others = static_cast<int64_t>(others.size()), inside = rank_blocks(size);
  const int64_t blocks = inside + rank_blocks(num_others), first_other = inside * kRankBlock;
  float *maxima = values + blocks * kRankBlock, *tokens = row + slipstream::kRowStats,
        *probs = tokens + out.count;
  std::fill(row, tokens, NAN);
  std::fill_n(tokens, out.count, -1.0f);
  std::fill_n(probs, out.count, 0.0f);
  if (!rank_values(logits, size, by, out.ids, values, maxima)) return;
  if (!rank_values(logits + size, num_others, by, others.data(), values + first_other,
                   maxima + inside)) {
    return;
  }
  const float best = *std::max_element(maxima, maxima + blocks);
  if (std::isinf(best)) return;
  const Mass mass = mass_of(values, blocks * kRankBlock, best);
  const float log_mass = std::log(mass.weights);
  row[slipstream::kEntropy] = log_mass - mass.logs / mass.weights;
  for (int64_t place = 0; place < std::max<int64_t>(out.count, 2); ++place) {
    float value;
    const int64_t column = take_best(values, maxima, blocks, &value);
    if (place < 2) row[slipstream::kLogBest + place] = value - best - log_mass;
    if (column < 0) return;
    if (place >= out.count) continue;
    const int64_t token = column >= first_other ? others[column - first_other]
                          : out.ids == nullptr  ? column
                                                : out.ids[column];
    tokens[place] = static_cast<float>(token);
    probs[place] = std::exp(value - best) / mass.weights;
  }
}

}  // namespace SLIPSTREAM_ISA
