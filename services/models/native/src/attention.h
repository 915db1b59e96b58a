// Attention of tokens over the keys and values of the slots that each sees, in the order of their
// positions. Where a slot lies and who else is computed makes no difference to the bits: a score is
// one chain over a head's elements, an output is one chain over positions.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "keys.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::Scratch;
using slipstream::Shape;

// What a token sees of one key head: the first `in_table` slots of a table, or of all where there
// is none, and then those of a line.
template <class T>
struct Seen {
  const T* keys;
  const T* values;
  const int64_t* table;
  int64_t in_table;
  const int64_t* line;
  int64_t in_line;

  int64_t count() const { return in_table + in_line; }
  bool shares_table(const Seen& other) const {
    return keys == other.keys && values == other.values && table == other.table;
  }
};

constexpr int kBlock = kLanes;   // positions that are looked at together
constexpr int kMaxTogether = 8;  // tokens of one task
constexpr int kAheadKeys = 32;   // positions whose keys are fetched ahead

// Tokens that share a table, and their neighbouring query heads of one key head.
template <class T>
class Attention {
 public:
  // `heads` query heads for the key head.
  Attention(const Shape& shape, int heads, Scratch& scratch)
      : dim_(shape.head_dim),
        width_((dim_ + kLanes - 1) / kLanes * kLanes),
        heads_(heads),
        scale_(shape.attention_scale),
        scratch_(scratch) {}

  // Queries and outputs of a token are [heads, head_dim], `..._stride` floats behind those of the
  // token before.
  void run(const Seen<T>* seen, int rows, const float* queries, size_t query_stride, float* out,
           size_t out_stride) {
    prepare(seen, rows);
    for (int64_t first = 0; first < longest_; first += kBlock) {
      take_keys(seen[0], seen[0].table, first, longest_);
      score(queries, query_stride, 0, rows, first);
    }
    for (int row = 0; row < rows; ++row) {
      const Seen<T>& own = seen[row];
      for (int64_t first = 0; first < own.in_line; first += kBlock) {
        take_keys(own, own.line, first, own.in_line);
        score(queries, query_stride, row, row + 1, own.in_table + first);
      }
      for (int head = 0; own.count() > 0 && head < heads_; ++head) {
        totals(row)[head] = soften(scores(row, head), static_cast<int>(own.count()));
      }
    }
    for (int64_t first = 0; first < longest_; first += kBlock) {
      take_values(seen[0], seen[0].table, first, std::min<int64_t>(kBlock, longest_ - first));
      const auto in_block = [&](int row) {
        return std::min<int64_t>(kBlock, seen[row].in_table - first);
      };
      for (int row = 0, end; row < rows; row = end) {
        for (end = row + 1; end < rows && in_block(end) == in_block(row);) ++end;
        weigh(row, end, first, in_block(row));
      }
    }
    for (int row = 0; row < rows; ++row) {
      const Seen<T>& own = seen[row];
      for (int64_t first = 0; first < own.in_line; first += kBlock) {
        const int64_t count = std::min<int64_t>(kBlock, own.in_line - first);
        take_values(own, own.line, first, count);
        weigh(row, row + 1, own.in_table + first, count);
      }
      finish(row, own.count(), out + row * out_stride);
    }
  }

 private:
  float* scores(int row, int head) {
    return scratch_.scores.data() + (row * heads_ + head) * stride_;
  }
  float* sums(int row, int head) {
    return scratch_.sums.data() + (row * heads_ + head) * width_;
  }
  float* totals(int row) { return scratch_.totals.data() + row * heads_; }

  void prepare(const Seen<T>* seen, int rows) {
    longest_ = 0;
    int64_t most = 0;
    for (int row = 0; row < rows; ++row) {
      longest_ = std::max(longest_, seen[row].in_table);
      most = std::max(most, seen[row].count());
    }
    stride_ = most + 3 * kBlock;  // what lies behind the last position is written, too
    scratch_.block.resize(static_cast<size_t>(width_) * kBlock);
    scratch_.scores.resize(rows * heads_ * stride_);
    scratch_.totals.resize(rows * heads_);
    scratch_.sums.assign(rows * heads_ * width_, 0.0f);
  }

  // Brings the keys of up to `kBlock` positions into lanes; behind the last one comes the last one.
  // Later keys, and the values that will be needed, are on their way meanwhile.
  void take_keys(const Seen<T>& seen, const int64_t* table, int64_t first, int64_t last) {
    const auto slot = [&](int64_t at) { return table == nullptr ? at : table[at]; };
    const T* keys[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const int64_t at = std::min(first + i, last - 1), later = std::min(at + kAheadKeys, last - 1);
      keys[i] = seen.keys + slot(at) * dim_;
      fetch(seen.keys + slot(later) * dim_);
      fetch(seen.values + slot(at) * dim_);
    }
    transpose(keys, dim_, scratch_.block.data());
  }

  void fetch(const T* head) {
    for (int d = 0; d < dim_; d += 64 / sizeof(T)) __builtin_prefetch(head + d);
  }

  // Scores of the block's positions, which go to `place` on, for some tokens.
  void score(const float* queries, size_t stride, int first, int last, int64_t place) {
    const float* query[kMaxQueries];
    float* goal[kMaxQueries];
    int waiting = 0;
    const auto flush = [&] {
      if (waiting > 0) score_some(query, goal, waiting);
      waiting = 0;
    };
    for (int row = first; row < last; ++row) {
      for (int head = 0; head < heads_; ++head) {
        query[waiting] = queries + row * stride + head * dim_;
        goal[waiting] = scores(row, head) + place;
        if (++waiting == kMaxQueries) flush();
      }
    }
    flush();
  }

  void score_some(const float* const* queries, float* const* goals, int count) {
    const float* keys = scratch_.block.data();
    dots_for(count, std::make_integer_sequence<int, kMaxQueries>())(queries, keys, dim_, scale_,
                                                                    goals);
  }

  // Turns scores into weights that are still to be divided by the number that it returns.
  static float soften(float* scores, int count) {
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

  // Brings the values of up to `kBlock` positions into floats [kBlock, width].
  void take_values(const Seen<T>& seen, const int64_t* table, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const T* value = seen.values + (table == nullptr ? first + i : table[first + i]) * dim_;
      float* goal = scratch_.block.data() + i * width_;
      for (int d = 0; d < dim_; d += kLanes) store(goal + d, load_some(value + d, dim_ - d));
    }
  }

  // Adds the block's values, weighted by the scores from `place` on, to the sums of some tokens.
  void weigh(int first, int last, int64_t place, int64_t count) {
    constexpr auto counts = std::make_integer_sequence<int, kMaxHeads>();
    for (int head = first * heads_; count > 0 && head < last * heads_;) {
      const int some = std::min(last * heads_ - head, kMaxHeads);
      weigh_some(some, head, place, count, counts);
      head += some;
    }
  }

  template <int... HEADS>
  void weigh_some(int some, int head, int64_t place, int64_t count,
                  std::integer_sequence<int, HEADS...>) {
    using Function = void (Attention::*)(int, int64_t, int64_t, int);
    static constexpr Function whole[] = {&Attention::weigh_parts<HEADS + 1, kParts>...};
    static constexpr Function single[] = {&Attention::weigh_parts<HEADS + 1, 1>...};
    const Function weigh_whole = whole[some - 1], weigh_single = single[some - 1];
    int d = 0;
    for (; d + kParts * kLanes <= width_; d += kParts * kLanes) {
      (this->*weigh_whole)(head, place, count, d);
    }
    for (; d < width_; d += kLanes) (this->*weigh_single)(head, place, count, d);
  }

  // `head` counts the heads of all tokens.
  template <int HEADS, int PARTS>
  void weigh_parts(int head, int64_t place, int64_t count, int d) {
    Lanes own[HEADS][PARTS];
    for (int h = 0; h < HEADS; ++h) {
      for (int c = 0; c < PARTS; ++c) own[h][c] = load(sums(0, head + h) + d + c * kLanes);
    }
    const float* weights = scores(0, head) + place;
    const float* values = scratch_.block.data() + d;
    for (int64_t p = 0; p < count; ++p, values += width_) {
      Lanes v[PARTS];
      for (int c = 0; c < PARTS; ++c) v[c] = load(values + c * kLanes);
      for (int h = 0; h < HEADS; ++h) {
        const Lanes weight = all(weights[h * stride_ + p]);
        for (int c = 0; c < PARTS; ++c) own[h][c] = fma(weight, v[c], own[h][c]);
      }
    }
    for (int h = 0; h < HEADS; ++h) {
      for (int c = 0; c < PARTS; ++c) store(sums(0, head + h) + d + c * kLanes, own[h][c]);
    }
  }

  // Means out of sums; zeros where nothing is seen.
  void finish(int row, int64_t count, float* out) {
    for (int head = 0; head < heads_; ++head) {
      const Lanes total = all(count == 0 ? 1.0f : totals(row)[head]);
      for (int d = 0; d < dim_; d += kLanes) {
        store_some(out + head * dim_ + d, div(load(sums(row, head) + d), total), dim_ - d);
      }
    }
  }

  const int dim_, width_, heads_;
  const float scale_;
  Scratch& scratch_;
  int64_t longest_ = 0;
  size_t stride_ = 0;
};

}  // namespace SLIPSTREAM_ISA
