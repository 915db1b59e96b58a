// Attention of one token over the keys and values of the slots that it sees, in the order of their
// positions. Where a slot lies and who else is computed makes no difference to the bits.
#pragma once

#include <algorithm>
#include <vector>

#include "lanes.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::Batch;
using slipstream::Shape;

// The slots that token `i` sees.
inline void visible_slots(const Batch& batch, int64_t i, std::vector<int64_t>& slots) {
  slots.assign(batch.tables[i], batch.tables[i] + batch.in_table[i]);
  slots.insert(slots.end(), batch.lines + batch.line_first[i], batch.lines + batch.line_first[i + 1]);
}

template <class T>
inline Lanes dot(const float* query, const T* key, int dim) {
  Lanes out = zero();
  for (int d = 0; d < dim; d += kLanes) {
    out = fma(load_some(query + d, dim - d), load_some(key + d, dim - d), out);
  }
  return out;
}

// scores[p] = scale * query . key at the p-th slot, four at a time.
template <class T>
inline void score(const float* query, const T* keys, const std::vector<int64_t>& slots, int dim,
                  float scale, float* scores) {
  const size_t count = slots.size();
  size_t p = 0;
  const auto at = [&](size_t i) { return dot(query, keys + slots[i] * dim, dim); };
  for (; p + 4 <= count; p += 4) sum4(at(p), at(p + 1), at(p + 2), at(p + 3), scores + p);
  for (; p < count; ++p) scores[p] = sum(at(p));
  for (p = 0; p < count; ++p) scores[p] *= scale;
}

// Turns scores into weights that are still to be divided by the number that it returns. There is
// room behind the scores for a whole set of lanes.
inline float soften(float* scores, int count) {
  Lanes most = all(scores[0]);
  for (int p = 0; p < count; p += kLanes) {
    for (int i = count; i < p + kLanes; ++i) scores[i] = scores[0];
    most = max(load(scores + p), most);
  }
  const Lanes top = all(largest(most));
  Lanes total = zero();
  for (int p = 0; p < count; p += kLanes) {
    store(scores + p, exp(sub(load(scores + p), top)));
    for (int i = count; i < p + kLanes; ++i) scores[i] = 0.0f;
    total = add(total, load(scores + p));
  }
  return sum(total);
}

// out[d] = sum over p of weights[p] * value at the p-th slot, for HEADS heads of one key head.
// `stride` is from one head's weights to the next one's.
template <int HEADS, class T>
inline void weigh(const float* weights, size_t stride, const float* totals, const T* values,
                  const std::vector<int64_t>& slots, int dim, float* out) {
  constexpr int kParts = HEADS > 1 ? 2 : 4;
  for (int d = 0; d < dim; d += kParts * kLanes) {
    Lanes sums[HEADS][kParts];
    const int parts = std::min(kParts, (dim - d + kLanes - 1) / kLanes);
    for (auto& row : sums) {
      for (Lanes& sum : row) sum = zero();
    }
    const auto run = [&](auto whole) {
      for (size_t p = 0; p < slots.size(); ++p) {
        const T* value = values + slots[p] * dim + d;
        Lanes v[kParts];
        for (int c = 0; c < kParts; ++c) {
          if (whole) {
            v[c] = load(value + c * kLanes);
          } else {
            v[c] = c < parts ? load_some(value + c * kLanes, dim - d - c * kLanes) : zero();
          }
        }
        for (int h = 0; h < HEADS; ++h) {
          const Lanes weight = all(weights[h * stride + p]);
          for (int c = 0; c < kParts; ++c) sums[h][c] = fma(weight, v[c], sums[h][c]);
        }
      }
    };
    if (d + kParts * kLanes <= dim) {
      run(std::true_type());
    } else {
      run(std::false_type());
    }
    for (int h = 0; h < HEADS; ++h) {
      for (int c = 0; c < parts; ++c) {
        const Lanes mean = div(sums[h][c], all(totals[h]));
        store_some(out + h * dim + d + c * kLanes, mean, dim - d - c * kLanes);
      }
    }
  }
}

// `heads` neighbouring query heads of one key head; out [heads, dim], zeros where nothing is seen.
template <class T>
inline void attend(const Shape& shape, const float* query, int heads, const T* keys,
                   const T* values, const std::vector<int64_t>& slots, std::vector<float>& scores,
                   float* out) {
  const int dim = shape.head_dim;
  if (slots.empty()) return static_cast<void>(std::fill_n(out, heads * dim, 0.0f));
  const size_t stride = slots.size() + 2 * kLanes;
  scores.resize(stride * 4);
  for (int first = 0; first < heads;) {
    const int some = heads - first >= 4 ? 4 : heads - first;
    float totals[4];
    for (int h = 0; h < some; ++h) {
      score(query + (first + h) * dim, keys, slots, dim, shape.attention_scale,
            scores.data() + h * stride);
      totals[h] = soften(scores.data() + h * stride, static_cast<int>(slots.size()));
    }
    float* goal = out + first * dim;
    switch (some) {
      case 4: weigh<4>(scores.data(), stride, totals, values, slots, dim, goal); break;
      case 3: weigh<3>(scores.data(), stride, totals, values, slots, dim, goal); break;
      case 2: weigh<2>(scores.data(), stride, totals, values, slots, dim, goal); break;
      default: weigh<1>(scores.data(), stride, totals, values, slots, dim, goal);
    }
    first += some;
  }
}

}  // namespace SLIPSTREAM_ISA
