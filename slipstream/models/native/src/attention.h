// Attention of tokens over the keys and values of the slots that each sees, in the order of their
// positions. Where a slot lies and who else is computed makes no difference to the bits: a score is
// one chain over a head's elements, an output is one chain over positions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "elementwise.h"
#include "keys.h"
#include "model.h"
#include "kv_span.h"

namespace SLIPSTREAM_ISA {

using slipstream::Lines;
using slipstream::Scratch;
using slipstream::Shape;
using slipstream::Span;

// Positions whose keys are brought into lanes together, and whose values are weighed together: those
// of the next ones are fetched meanwhile. Of more at once, memory and arithmetic wait for each other.
constexpr int kBlock = kLanes;
constexpr int kChunk = 2 * kLanes;  // elements of values that are weighed together

inline int64_t num_chunks(const Shape& shape) { return (shape.head_dim + kChunk - 1) / kChunk; }

// Tokens that share a block_table, and their neighbouring query heads of one key head. Scores,
// weights and means follow each other; threads of a team may share each of the three.
template <class T>
class Attention {
 public:
  // `heads` query heads for the key head. `block` is of one thread, `scratch` is shared.
  Attention(const Shape& shape, int heads, const KvSpan<T>* seen, int rows,
            Lines<float>& block, Scratch& scratch)
      : dim_(shape.head_dim),
        width_((dim_ + kLanes - 1) / kLanes * kLanes),
        heads_(heads),
        rows_(rows),
        scale_(shape.attention_scale),
        spans_(seen),
        scratch_(scratch) {
    int64_t max_count = 0;
    first_ = seen[0].hidden;
    for (int row = 0; row < rows; ++row) {
      longest_ = std::max(longest_, seen[row].num_in_table);
      max_count = std::max(max_count, seen[row].count());
      first_ = std::min(first_, seen[row].hidden);
    }
    first_ = first_ / kBlock * kBlock;
    stride_ = stride_for(max_count);
    block.resize(static_cast<size_t>(dim_) * kBlock * kManyBlocks);
    block_ = block.data();
  }

  // Makes room for tokens that see up to `max_count` positions.
  static void reserve(const Shape& shape, int heads, int rows, int64_t max_count,
                      Scratch& scratch) {
    const size_t width = (shape.head_dim + kLanes - 1) / kLanes * kLanes;
    grow(scratch.scores, rows * heads * stride_for(max_count));
    grow(scratch.totals, rows * heads);
    grow(scratch.sums, rows * heads * width);
  }

  int64_t num_blocks() const {
    return std::max<int64_t>(0, (longest_ - first_ + kBlock - 1) / kBlock);
  }

  // Scores of some blocks of the block_table's positions. The queries of a token are [heads,
  // head_dim], `stride` floats behind those of the token before.
  void score(Span blocks, const float* queries, size_t stride) {
    for (int64_t block = blocks.first, count; block < blocks.last; block += count) {
      const int64_t first = first_ + block * kBlock;
      count = std::min<int64_t>(kManyBlocks, blocks.last - block);
      for (int i = 0; i < count; ++i) {
        take_keys(spans_[0], spans_[0].block_table, first + i * kBlock, longest_, i);
      }
      score_blocks(static_cast<int>(count), queries, stride, {0, rows_}, first);
    }
  }

  // Weights of some tokens, out of these scores and those of their own ancestors. A block's scores
  // end behind the block_table, so ancestors come after all blocks.
  void softmax(Span rows, const float* queries, size_t stride) {
    for (int row = static_cast<int>(rows.first); row < rows.last; ++row) {
      const KvSpan<T>& own = spans_[row];
      for (int64_t first = hidden_ancestors(own); first < own.num_ancestors; first += kBlock) {
        take_keys(own, own.ancestors, first, own.num_ancestors, 0);
        score_blocks(1, queries, stride, {row, row + 1}, own.num_in_table + first);
      }
      for (int head = 0; own.count() > 0 && head < heads_; ++head) {
        totals(row)[head] = exp_and_sum(scores(row, head), first_, own.hidden, own.count());
      }
    }
  }

  // Weighted means of some chunks of the values' elements; zeros where nothing is seen. Outputs lie
  // as queries do.
  void weighted_values(Span chunks, float* out, size_t stride) {
    const Span elements{chunks.first * kChunk, std::min<int64_t>(chunks.last * kChunk, width_)};
    for (int head = 0; head < rows_ * heads_; ++head) {
      std::fill(sums(0, head) + elements.first, sums(0, head) + elements.last, 0.0f);
    }
    add_table_values(elements);
    for (int row = 0; row < rows_; ++row) {
      add_ancestor_values(row, elements);
      for (int64_t d = elements.first; d < elements.last; d += kChunk) {
        finish(row, d, std::min<int64_t>(d + kChunk, width_), out + row * stride);
      }
    }
  }

 private:
  static size_t stride_for(int64_t max_count) {
    return max_count + 3 * kBlock;  // what lies behind the last position is written, too
  }
  static void grow(Lines<float>& values, size_t size) {
    if (values.size() < size) values.resize(size);
  }
  float* scores(int row, int head) {
    return scratch_.scores.data() + (row * heads_ + head) * stride_;
  }
  float* sums(int row, int head) {
    return scratch_.sums.data() + (row * heads_ + head) * width_;
  }
  float* totals(int row) { return scratch_.totals.data() + row * heads_; }

  float* block(int number) { return block_ + number * dim_ * kBlock; }

  // Brings the keys of up to `kBlock` positions into the lanes of a block; behind the last one
  // comes the last one. Later keys are on their way meanwhile.
  void take_keys(const KvSpan<T>& seen, const int64_t* block_table, int64_t first, int64_t last,
                 int number) {
    const T* keys[kBlock];
    each_place(block_table, first, last, [&](int i, int64_t slot, int64_t later) {
      keys[i] = seen.keys + slot * dim_;
      fetch(seen.keys + later * dim_, dim_);
    });
    transpose(keys, dim_, block(number));
  }

  // The slots of `kBlock` positions from `first` on, and those of the next block; behind the last
  // one comes the last one.
  template <class Take>
  static SLIPSTREAM_INLINE void each_place(const int64_t* block_table, int64_t first, int64_t last,
                                           const Take& take) {
    const auto each = [&](const auto& slot) {
      if (first + 2 * kBlock <= last) {
        for (int i = 0; i < kBlock; ++i) take(i, slot(first + i), slot(first + kBlock + i));
        return;
      }
      const auto known = [&](int64_t at) { return slot(std::min(at, last - 1)); };
      for (int i = 0; i < kBlock; ++i) take(i, known(first + i), known(first + kBlock + i));
    };
    if (block_table == nullptr) {
      each([](int64_t at) { return at; });
    } else {
      each([&](int64_t at) { return block_table[at]; });
    }
  }

  static SLIPSTREAM_FETCHES void fetch(const T* elements, int count) {
    for (int d = 0; d < count; d += 64 / sizeof(T)) __builtin_prefetch(elements + d);
  }

  // Scores of the positions of `count` blocks, which go to `offset` on, for some tokens.
  void score_blocks(int count, const float* queries, size_t stride, Span rows, int64_t offset) {
    const float* query[kMaxQueries];
    float* dst[kMaxQueries];
    int waiting = 0;
    const auto flush = [&] {
      if (waiting > 0) score_batch(count, query, dst, waiting);
      waiting = 0;
    };
    for (int row = static_cast<int>(rows.first); row < rows.last; ++row) {
      for (int head = 0; head < heads_; ++head) {
        query[waiting] = queries + row * stride + head * dim_;
        dst[waiting] = scores(row, head) + offset;
        if (++waiting == kMaxQueries) flush();
      }
    }
    flush();
  }

  void score_batch(int blocks, const float* const* queries, float** dsts, int count) {
    constexpr auto counts = std::make_integer_sequence<int, kMaxQueries>();
    const int many = blocks_for(count);
    for (int first = 0, now; first < blocks; first += now) {
      now = blocks - first < many ? 1 : many;
      dots_for(count, now == many, counts)(queries, block(first), dim_, scale_, dsts);
      for (int q = 0; q < count; ++q) dsts[q] += now * kBlock;
    }
  }

  static int64_t hidden_ancestors(const KvSpan<T>& own) {
    return std::max<int64_t>(0, own.hidden - own.num_in_table);
  }

  void add_table_values(Span elements) {
    for (int64_t first = first_; first < longest_; first += kBlock) {
      find_values(spans_[0], spans_[0].block_table, first, longest_, elements);
      const auto in_block = [&](int row) {
        return std::min<int64_t>(kBlock, spans_[row].num_in_table - first);
      };
      for (int row = 0, end; row < rows_; row = end) {
        for (end = row + 1; end < rows_ && in_block(end) == in_block(row);) ++end;
        add_weighted_rows(row, end, first, in_block(row), elements);
      }
    }
  }

  void add_ancestor_values(int row, Span elements) {
    const KvSpan<T>& own = spans_[row];
    for (int64_t first = hidden_ancestors(own); first < own.num_ancestors; first += kBlock) {
      const int64_t count = std::min<int64_t>(kBlock, own.num_ancestors - first);
      find_values(own, own.ancestors, first, own.num_ancestors, elements);
      add_weighted_rows(row, row + 1, own.num_in_table + first, count, elements);
    }
  }

  // Finds the values of up to `kBlock` positions; those of the next ones are on their way.
  void find_values(const KvSpan<T>& seen, const int64_t* block_table, int64_t first, int64_t last,
                   Span elements) {
    const int count = static_cast<int>(elements.last - elements.first);
    each_place(block_table, first, last, [&](int i, int64_t slot, int64_t later) {
      values_[i] = seen.values + slot * dim_;
      fetch(seen.values + later * dim_ + elements.first, count);
    });
  }

  // Adds these values, weighted by the scores from `offset` on, to the sums of some tokens.
  void add_weighted_rows(int first, int last, int64_t offset, int64_t count, Span elements) {
    constexpr auto counts = std::make_integer_sequence<int, kMaxHeads>();
    for (int head = first * heads_; count > 0 && head < last * heads_;) {
      const int num = std::min(last * heads_ - head, kMaxHeads);
      for (int64_t d = elements.first, chunks; d < elements.last; d += chunks * kChunk) {
        const int64_t end = std::min<int64_t>(elements.last, dim_);
        const bool are_two = num <= kMaxTwice && d + 2 * kChunk <= end;
        chunks = are_two ? 2 : 1;
        add_weighted(num, head, offset, count, d, are_two, counts);
      }
      head += num;
    }
  }

  // Heads of which two chunks are weighed at once: their sums hide how long one takes.
  static constexpr int kMaxTwice = kParts == 2 ? kMaxHeads / 2 : 0;

  // `head` counts the heads of all tokens.
  template <int... HEADS>
  void add_weighted(int num, int head, int64_t offset, int64_t count, int d, bool are_two,
                    std::integer_sequence<int, HEADS...>) {
    using Function = void (Attention::*)(int, int64_t, int64_t, int);
    static constexpr Function twos[] = {&Attention::add_weighted_two<HEADS + 1>...};
    static constexpr Function pairs[] = {&Attention::add_weighted_pair<HEADS + 1>...};
    static constexpr Function tails[] = {&Attention::add_weighted_tail<HEADS + 1>...};
    const Function one = d + kChunk <= dim_ ? pairs[num - 1] : tails[num - 1];
    (this->*(are_two ? twos[num - 1] : one))(head, offset, count, d);
  }

  template <int HEADS>
  void add_weighted_two(int head, int64_t offset, int64_t count, int d) {
    if constexpr (HEADS <= kMaxTwice) {
      const auto first = [](const T* p) { return load_first(p); };
      const auto second = [](const T* p) { return load_second(p); };
      const auto third = [](const T* p) { return load_first(p + kChunk); };
      const auto fourth = [](const T* p) { return load_second(p + kChunk); };
      add_weighted_parts<HEADS>(head, offset, count, d, first, second, third, fourth);
    }
  }

  template <int HEADS>
  void add_weighted_pair(int head, int64_t offset, int64_t count, int d) {
    const auto first = [](const T* p) { return load_first(p); };
    const auto second = [](const T* p) { return load_second(p); };
    if constexpr (kParts == 2) {
      add_weighted_parts<HEADS>(head, offset, count, d, first, second);
    } else {
      add_weighted_parts<HEADS>(head, offset, count, d, first);
      const auto behind = [&](const T* p) { return second(p - kLanes); };
      add_weighted_parts<HEADS>(head, offset, count, d + kLanes, behind);
    }
  }

  template <int HEADS>
  void add_weighted_tail(int head, int64_t offset, int64_t count, int d) {
    for (int at = 0; at < dim_ - d; at += kLanes) {
      const auto tail = [&](const T* p) { return load_partial(p, dim_ - d - at); };
      add_weighted_parts<HEADS>(head, offset, count, d + at, tail);
    }
  }

  // Each of `parts` gives lanes of a position's values, from element `d` on.
  template <int HEADS, class... Parts>
  void add_weighted_parts(int head, int64_t offset, int64_t count, int d, const Parts&... parts) {
    constexpr int num_parts = sizeof...(Parts);
    float* const first = sums(0, head) + d;
    const int width = width_;
    Lanes own[HEADS][num_parts];
    const auto each = [&](const auto& work) {
      unrolled<HEADS * num_parts>([&](auto i) {
        constexpr int h = i / num_parts, c = i % num_parts;
        work(own[h][c], first + h * width + c * kLanes);
      });
    };
    each([](Lanes& sum, const float* p) { sum = load(p); });
    const float* weights = scores(0, head) + offset;
    const T* const* const values = values_;
    const size_t stride = stride_;
    for (int64_t p = 0; p < count; ++p) {
      const T* const value = values[p] + d;
      const Lanes v[] = {parts(value)...};
      unrolled<HEADS>([&](auto h) {
        const Lanes weight = all(weights[h * stride + p]);
        unrolled<num_parts>([&](auto c) { own[h][c] = fma(weight, v[c], own[h][c]); });
      });
    }
    each([](const Lanes& sum, float* p) { store(p, sum); });
  }

  // Means out of sums. Of the two lanes of a chunk in bfloat16 each holds every second element.
  void finish(int row, int d, int end, float* out) {
    for (int head = 0; head < heads_; ++head) {
      const Lanes total = all(spans_[row].count() == 0 ? 1.0f : totals(row)[head]);
      float* const own = sums(row, head) + d;
      for (int i = 0; i < end - d; i += kLanes) store(own + i, div(load(own + i), total));
      float* const dst = out + head * dim_ + d;
      if (std::is_same_v<T, BFloat16> && d + kChunk <= dim_) {
        for (int i = 0; i < kChunk; ++i) dst[i] = own[i % 2 * kLanes + i / 2];
      } else {
        std::copy(own, own + std::min(kChunk, dim_ - d), dst);
      }
    }
  }

  const int dim_, width_, heads_, rows_;
  const float scale_;
  const KvSpan<T>* const spans_;
  Scratch& scratch_;
  int64_t first_ = 0, longest_ = 0;  // positions of the block_table, from a multiple of kBlock on
  size_t stride_ = 0;
  float* block_ = nullptr;
  const T* values_[kBlock];
};

}  // namespace SLIPSTREAM_ISA
