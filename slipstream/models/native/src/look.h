// Attentions of a forward's tokens, as the members of its team share them.
#pragma once

#include <algorithm>
#include <utility>

#include "attention.h"

namespace SLIPSTREAM_ISA {

using slipstream::Batch;
using slipstream::Buffers;
using slipstream::Team;

constexpr int kMaxTogether = 8;  // tokens that are looked at together

// Queries are the first of `qkv` [rows, qkv_width], means go to `attended` [rows, heads * head_dim].
template <class T>
class Look {
 public:
  Look(const Shape& shape, const Batch& batch, Team& team, int qkv_width, Buffers& buffers)
      : shape_(shape), team_(team), qkv_width_(qkv_width), buffers_(buffers) {
    buffers_.attended.resize(batch.count * attended_width());
    buffers_.blocks.resize(team.size());
    buffers_.scratch.resize(std::max(team.size(), shape.key_heads));
    reserve(batch);
  }

  // Attention of `rows` tokens; `find(row)` gives what each sees of the first key head, and how many
  // elements further on it is for the next one. Tokens that share a table go together; a few that
  // all do are shared by the members, else each member has some for itself.
  template <class Find>
  void run(int member, int64_t rows, const Find& find) {
    if (rows <= kMaxTogether && team_.size() > 1) {
      Seen<T> seen[kMaxTogether];
      int count = 0;
      while (count < rows && (count == 0 || find(count).first.shares_table(seen[0]))) {
        seen[count] = find(count).first, ++count;
      }
      if (count == rows) return together(member, count, seen, find(0).second);
    }
    const int64_t size = team_.size();
    const int most = static_cast<int>(std::min<int64_t>(kMaxTogether, (rows + size - 1) / size));
    const int64_t tasks = (rows + most - 1) / most * shape_.key_heads;
    team_.each(member, tasks, [&](int64_t i) {
      const int64_t head = i % shape_.key_heads, first = i / shape_.key_heads * most;
      const int64_t last = std::min(rows, first + most);
      Seen<T> seen[kMaxTogether];
      for (int64_t row = first; row < last;) {
        int count = 0;
        for (; row < last; ++row, ++count) {
          const Seen<T> own = of_head(find(row), head);
          if (count > 0 && !own.shares_table(seen[0])) break;
          seen[count] = own;
        }
        alone(member, row - count, count, seen, head);
      }
    });
  }

 private:
  // Makes room for all attentions: members that share one find it.
  void reserve(const Batch& batch) {
    int64_t most = 0;
    for (int64_t row = 0; row < batch.count; ++row) {
      const int64_t in_line = batch.line_first[row + 1] - batch.line_first[row];
      most = std::max(most, batch.in_table[row] + in_line);
      if (shape_.others > 0) most = std::max(most, batch.in_others[row]);
    }
    const int rows = static_cast<int>(std::min<int64_t>(batch.count, kMaxTogether));
    for (Scratch& scratch : buffers_.scratch) {
      Attention<T>::reserve(shape_, group(), rows, most, scratch);
    }
  }

  static Seen<T> of_head(std::pair<Seen<T>, int64_t> first, int64_t head) {
    auto [seen, stride] = first;
    if (seen.keys != nullptr) seen.keys += head * stride, seen.values += head * stride;
    return seen;
  }

  void alone(int member, int64_t row, int count, const Seen<T>* seen, int64_t head) {
    Attention<T> attention(shape_, group(), seen, count, buffers_.blocks[member],
                           buffers_.scratch[member]);
    attention.score({0, attention.num_blocks()}, query(row, head), qkv_width_);
    attention.soften({0, count}, query(row, head), qkv_width_);
    attention.weigh({0, num_chunks(shape_)}, attended(row, head), attended_width());
  }

  // Members share positions for the scores, tokens for the weights, elements for the means.
  void together(int member, int rows, const Seen<T>* seen, int64_t stride) {
    const auto at = [&](int64_t head, const auto& work) {
      Seen<T> own[kMaxTogether];
      for (int row = 0; row < rows; ++row) own[row] = of_head({seen[row], stride}, head);
      Attention<T> attention(shape_, group(), own, rows, buffers_.blocks[member],
                             buffers_.scratch[head]);
      work(attention);
    };
    for (int head = 0; head < shape_.key_heads; ++head) {
      at(head, [&](Attention<T>& attention) {
        const Span blocks = slipstream::part(attention.num_blocks(), member, team_.size());
        attention.score(blocks, query(0, head), qkv_width_);
      });
    }
    team_.barrier();
    team_.each(member, shape_.key_heads * rows, [&](int64_t i) {
      const int64_t head = i / rows, row = i % rows;
      at(head, [&](Attention<T>& attention) {
        attention.soften({row, row + 1}, query(0, head), qkv_width_);
      });
    });
    const int64_t chunks = num_chunks(shape_);
    team_.each(member, shape_.key_heads * chunks, [&](int64_t i) {
      const int64_t head = i / chunks, chunk = i % chunks;
      at(head, [&](Attention<T>& attention) {
        attention.weigh({chunk, chunk + 1}, attended(0, head), attended_width());
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
