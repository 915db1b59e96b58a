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

// Queries are the first of `qkv` [rows, qkv_width], means go to `attended` [rows, heads *
// head_dim].
template <class T>
class AttentionScheduler {
 public:
  AttentionScheduler(const Shape& shape, const Batch& batch, Team& team, int qkv_width,
                     Buffers& buffers)
      : shape_(shape), team_(team), qkv_width_(qkv_width), buffers_(buffers) {
    buffers_.attended.resize(batch.count * attended_width());
    buffers_.blocks.resize(team.size());
    buffers_.scratch.resize(std::max(team.size(), shape.key_heads));
    reserve(batch);
  }

  // Attention of `rows` tokens; `find(row)` gives what each sees of the first key head, and how
  // many elements further on it is for the next one. Tokens that share a block_table go together; a
  // few that all do are shared by the threads, else each thread has some for itself.
  template <class Find>
  void run(int thread, int64_t rows, const Find& find) {
    if (rows <= kMaxTogether && team_.size() > 1) {
      KvSpan<T> seen[kMaxTogether];
      int count = 0;
      while (count < rows && (count == 0 || find(count).first.shares_table(seen[0]))) {
        seen[count] = find(count).first, ++count;
      }
      if (count == rows) return together(thread, count, seen, find(0).second);
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
        alone(thread, row - count, count, seen, head);
      }
    });
  }

 private:
  // Makes room for all attentions: threads that share one find it.
  void reserve(const Batch& batch) {
    int64_t max_count = 0;
    for (int64_t row = 0; row < batch.count; ++row) {
      const int64_t num_ancestors = batch.first_ancestor[row + 1] - batch.first_ancestor[row];
      max_count = std::max(max_count, batch.num_in_table[row] + num_ancestors);
      if (shape_.num_cross > 0) max_count = std::max(max_count, batch.num_read[row]);
    }
    const int rows = static_cast<int>(std::min<int64_t>(batch.count, kMaxTogether));
    for (Scratch& scratch : buffers_.scratch) {
      Attention<T>::reserve(shape_, group(), rows, max_count, scratch);
    }
  }

  static KvSpan<T> of_head(std::pair<KvSpan<T>, int64_t> first, int64_t head) {
    auto [seen, stride] = first;
    if (seen.keys != nullptr) seen.keys += head * stride, seen.values += head * stride;
    return seen;
  }

  void alone(int thread, int64_t row, int count, const KvSpan<T>* seen, int64_t head) {
    Attention<T> attention(shape_, group(), seen, count, buffers_.blocks[thread],
                           buffers_.scratch[thread]);
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
        attention.score(blocks, query(0, head), qkv_width_);
      });
    }
    team_.barrier();
    team_.each(thread, shape_.key_heads * rows, [&](int64_t i) {
      const int64_t head = i / rows, row = i % rows;
      at(head, [&](Attention<T>& attention) {
        attention.softmax({row, row + 1}, query(0, head), qkv_width_);
      });
    });
    const int64_t chunks = num_chunks(shape_);
    team_.each(thread, shape_.key_heads * chunks, [&](int64_t i) {
      const int64_t head = i / chunks, chunk = i % chunks;
      at(head, [&](Attention<T>& attention) {
        attention.weighted_values({chunk, chunk + 1}, attended(0, head), attended_width());
      });
    });
  }

  int group() const { return shape_.heads / shape_.key_heads; }
  const float* query(int64_t row, int64_t head) {
    return buffers_.qkv.data() + row * qkv_width_ + head * group() * shape_.head_dim;
  }
  float* attended(int64_t row, int64_t head) {
    return buffers_.attended.data() + row * attended_width() + head * group() * shape_.head_dim;
  }
  int attended_width() const { return shape_.heads * shape_.head_dim; }

  const Shape& shape_;
  Team& team_;
  const int qkv_width_;
  Buffers& buffers_;
};

}  // namespace SLIPSTREAM_ISA
