// Attentions of a forward's tokens, as the threads of its team share them.
#pragma once

#include <algorithm>
#include <utility>

#include "attention.h"

namespace SLIPSTREAM_ISA {

using slipstream::Batch;
using slipstream::Buffers;
using slipstream::Team;

constexpr int kMaxTogether = 8;  // tokens that are looked at together
// Where threads have heads of their own: the most tokens times the positions that they see, as more
// of them take longer than waiting does, and twice the most key heads that all threads together
// bring into lanes, for each there is.
constexpr int64_t kMostApart = 4096;
constexpr int kMostTwice = 3;

// Queries are the first of `qkv` [rows, qkv_width], means go to `attended` [rows, heads *
// head_dim].
template <class T>
class AttentionScheduler {
 public:
  AttentionScheduler(const Shape& shape, const Batch& batch, Team& team, int qkv_width,
                     Buffers& buffers)
      : shape_(shape), team_(team), qkv_width_(qkv_width), buffers_(buffers) {
    for (int thread = 0; thread < team.size(); ++thread) {
      const Span own = own_heads(thread);
      num_key_heads_ = std::max(num_key_heads_, (own.last - 1) / group() - own.first / group() + 1);
    }
    buffers_.attended.resize(batch.count * attended_width());
    buffers_.blocks.resize(team.size());
    buffers_.scratch.resize(std::max(team.size(), shape.key_heads));
    reserve(batch);
  }

  // The query heads that a thread has where threads split them.
  Span own_heads(int thread) const { return slipstream::part(shape_.heads, thread, team_.size()); }

  // Whether each thread best computes heads of its own for `rows` tokens, see `run_heads`: for a
  // few that share a block_table. Threads that have heads of one key head each bring its keys into
  // lanes, which has to cost less than waiting for each other in between.
  template <class Find>
  bool splits_heads(int64_t rows, const Find& find) const {
    const int64_t size = team_.size();
    if (size == 1 || size > shape_.heads || shape_.head_dim % slipstream::kGroup != 0) return false;
    if (2 * num_key_heads_ * size > kMostTwice * shape_.key_heads) return false;
    return rows * max_count_ <= kMostApart && share_table(rows, find);
  }

  // Attention of `rows` tokens for the thread's own heads: of these alone no other thread needs
  // anything. `find(row)` gives what each sees of the first key head, and how many elements further
  // on it is for the next one.
  template <class Find>
  void run_heads(int thread, int64_t rows, const Find& find) {
    const Span own = own_heads(thread);
    KvSpan<T> seen[kMaxTogether];
    for (int64_t head = own.first, last; head < own.last; head = last) {
      const int64_t key_head = head / group();
      last = std::min<int64_t>(own.last, (key_head + 1) * group());
      for (int64_t row = 0; row < rows; ++row) seen[row] = of_head(find(row), key_head);
      alone(thread, 0, static_cast<int>(rows), seen, {head, last});
    }
  }

  // The same for all heads, and waits for the other threads. Tokens that share a block_table go
  // together; a few that all do are shared by the threads, else each thread has some for itself.
  template <class Find>
  void run(int thread, int64_t rows, const Find& find) {
    if (team_.size() > 1 && share_table(rows, find)) {
      KvSpan<T> seen[kMaxTogether];
      for (int64_t row = 0; row < rows; ++row) seen[row] = find(row).first;
      return together(thread, static_cast<int>(rows), seen, find(0).second);
    }
    const int64_t size = team_.size();
    const int max_count =
        static_cast<int>(std::min<int64_t>(kMaxTogether, (rows + size - 1) / size));
    const int64_t tasks = (rows + max_count - 1) / max_count * shape_.key_heads;
    team_.each(thread, tasks, 1, [&](int64_t i) {
      const int64_t head = i % shape_.key_heads, first = i / shape_.key_heads * max_count;
      const int64_t last = std::min(rows, first + max_count);
      KvSpan<T> seen[kMaxTogether];
      for (int64_t row = first; row < last;) {
        int count = 0;
        for (; row < last; ++row, ++count) {
          const KvSpan<T> own = of_head(find(row), head);
          if (count > 0 && !own.shares_table(seen[0])) break;
          seen[count] = own;
        }
        alone(thread, row - count, count, seen, {head * group(), (head + 1) * group()});
      }
    });
  }

 private:
  // Whether a few tokens all share a block_table.
  template <class Find>
  static bool share_table(int64_t rows, const Find& find) {
    if (rows > kMaxTogether) return false;
    const KvSpan<T> first = find(0).first;
    for (int64_t row = 1; row < rows; ++row) {
      if (!find(row).first.shares_table(first)) return false;
    }
    return true;
  }

  // Makes room for all attentions: threads that share one find it.
  void reserve(const Batch& batch) {
    for (int64_t row = 0; row < batch.count; ++row) {
      const int64_t num_ancestors = batch.first_ancestor[row + 1] - batch.first_ancestor[row];
      max_count_ = std::max(max_count_, batch.num_in_table[row] + num_ancestors);
      if (shape_.num_cross > 0) max_count_ = std::max(max_count_, batch.num_read[row]);
    }
    const int rows = static_cast<int>(std::min<int64_t>(batch.count, kMaxTogether));
    for (Scratch& scratch : buffers_.scratch) {
      Attention<T>::reserve(shape_, group(), rows, max_count_, scratch);
    }
  }

  static KvSpan<T> of_head(std::pair<KvSpan<T>, int64_t> first, int64_t head) {
    auto [seen, stride] = first;
    if (seen.keys != nullptr) seen.keys += head * stride, seen.values += head * stride;
    return seen;
  }

  void alone(int thread, int64_t row, int count, const KvSpan<T>* seen, Span heads) {
    const int64_t head = heads.first;
    Attention<T> attention(shape_, static_cast<int>(heads.last - head), seen, count,
                           buffers_.blocks[thread], buffers_.scratch[thread]);
    attention.score({0, attention.num_blocks()}, query(row, head), qkv_width_);
    attention.softmax({0, count}, query(row, head), qkv_width_);
    attention.weighted_values({0, num_chunks(shape_)}, attended(row, head), attended_width());
  }

  // Members share positions for the scores, tokens for the weights, elements for the means.
  void together(int thread, int rows, const KvSpan<T>* seen, int64_t stride) {
    const auto at = [&](int64_t head, const auto& work) {
      KvSpan<T> own[kMaxTogether];
      for (int row = 0; row < rows; ++row) own[row] = of_head({seen[row], stride}, head);
      Attention<T> attention(shape_, group(), own, rows, buffers_.blocks[thread],
                             buffers_.scratch[head]);
      work(attention);
    };
    for (int head = 0; head < shape_.key_heads; ++head) {
      at(head, [&](Attention<T>& attention) {
        const Span blocks = slipstream::part(attention.num_blocks(), thread, team_.size());
        attention.score(blocks, query(0, head * group()), qkv_width_);
      });
    }
    team_.barrier();
    team_.each(thread, shape_.key_heads * rows, [&](int64_t i) {
      const int64_t head = i / rows, row = i % rows;
      at(head, [&](Attention<T>& attention) {
        attention.softmax({row, row + 1}, query(0, head * group()), qkv_width_);
      });
    });
    const int64_t chunks = num_chunks(shape_);
    team_.each(thread, shape_.key_heads * chunks, [&](int64_t i) {
      const int64_t head = i / chunks, chunk = i % chunks;
      at(head, [&](Attention<T>& attention) {
        float* out = attended(0, head * group());
        attention.weighted_values({chunk, chunk + 1}, out, attended_width());
      });
    });
  }

  int group() const { return shape_.heads / shape_.key_heads; }
  const float* query(int64_t row, int64_t head) {
    return buffers_.qkv.data() + row * qkv_width_ + head * shape_.head_dim;
  }
  float* attended(int64_t row, int64_t head) {
    return buffers_.attended.data() + row * attended_width() + head * shape_.head_dim;
  }
  int attended_width() const { return shape_.heads * shape_.head_dim; }

  const Shape& shape_;
  Team& team_;
  const int qkv_width_;
  Buffers& buffers_;
  int64_t num_key_heads_ = 0;  // that a thread's own heads are of, at most
  int64_t max_count_ = 0;      // positions that a token sees, at most
};

}  // namespace SLIPSTREAM_ISA
