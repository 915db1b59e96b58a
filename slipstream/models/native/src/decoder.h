// The forward of a decoder: every member of the team runs it, barriers separate its steps. Layers
// may have attentions over others' keys besides, as drafts have over their target's.
#pragma once

#include "blocks.h"
#include "elementwise.h"
#include "look.h"
#include "packing.h"
#include "products.h"

namespace SLIPSTREAM_ISA {

using slipstream::Block;
using slipstream::Cache;
using slipstream::Layer;
using slipstream::Model;
using slipstream::Other;

template <class T>
class Forward {
 public:
  Forward(Model& model, const Cache& cache, const Batch& batch, float* hidden)
      : model_(model),
        shape_(model.shape),
        cache_(cache),
        batch_(batch),
        hidden_(hidden),
        qkv_width_((shape_.heads + 2 * shape_.key_heads) * shape_.head_dim),
        wide_width_((shape_.mlp + kTile - 1) / kTile * kTile * 2),
        buffers_(model.buffers),
        look_(shape_, batch, *model.team, qkv_width_, buffers_) {
    buffers_.x.resize(batch.count * shape_.hidden);
    buffers_.normed.resize(batch.count * shape_.hidden);
    buffers_.qkv.resize(batch.count * qkv_width_);
    buffers_.wide.resize(batch.count * wide_width_);
    buffers_.gated.resize(batch.count * shape_.mlp);
    buffers_.normed_codes.resize(batch.count, shape_.hidden);
    buffers_.attended_codes.resize(batch.count, shape_.heads * shape_.head_dim);
    buffers_.gated_codes.resize(batch.count, shape_.mlp);
  }

  void run(int member) {
    embed(member);
    for (int at = 0; at < shape_.layers; ++at) {
      const int64_t kept = at + 1 < shape_.layers ? batch_.count : batch_.kept;
      layer(member, model_.layers[at], static_cast<T*>(cache_.layers[at]), kept);
    }
    model_.team->each(member, batch_.kept, [&](int64_t row) {
      norm(x(row), model_.norm.data(), shape_.hidden, shape_.norm_epsilon,
           hidden_ + row * shape_.hidden);
    });
  }

 private:
  float* x(int64_t row) { return buffers_.x.data() + row * shape_.hidden; }
  float* normed(int64_t row) { return buffers_.normed.data() + row * shape_.hidden; }
  float* qkv(int64_t row) { return buffers_.qkv.data() + row * qkv_width_; }

  void embed(int member) {
    const Kind kind = model_.embedding_kind;
    const size_t bytes = slipstream::row_bytes(kind, shape_.hidden);
    model_.team->each(member, batch_.count, [&](int64_t row) {
      const int64_t token = batch_.tokens[row];
      if (model_.embedding == nullptr) {
        slipstream::unpack_row(model_.head, token, x(row));
      } else {
        slipstream::dequantise(kind, model_.embedding + token * bytes, shape_.hidden, x(row));
      }
      if (shape_.embedding_scale != 1.0f) {
        multiply_by(shape_.embedding_scale, shape_.hidden, x(row));
      }
    });
  }

  // Of the first `kept` rows; the others have keys and values alone.
  void layer(int member, const Layer& layer, T* cache, int64_t kept) {
    attention(member, layer, cache, kept);
    if (kept == 0) return;
    for (int at = 0; at < shape_.others && batch_.others; ++at) read_other(member, layer, at, kept);
    mlp(member, layer.blocks.back(), kept);
  }

  void prepare(int member, const Block& block, int64_t rows) {
    int forms = kAsTheyAre;
    for (const Matrix& m : block.into) forms |= form(m.kind);
    model_.team->each(member, rows, [&](int64_t row) {
      float* out = normed(row);
      if (block.norm.empty()) {
        std::copy_n(x(row), shape_.hidden, out);
      } else {
        norm(x(row), block.norm.data(), shape_.hidden, shape_.norm_epsilon, out);
      }
      encode(forms, out, row, buffers_.normed_codes);
    });
  }

  // Heads of all tokens; queries of the first `kept` ones alone.
  void project(int member, const Block& block, int64_t kept, int64_t all) {
    const Tokens normed{buffers_.normed.data(), &buffers_.normed_codes};
    const int queries = shape_.heads * shape_.head_dim;
    int skipped = 0;
    for (const Matrix& m : block.into) {
      const auto write = [&](int64_t row, int output, Lanes y, int count) {
        store_some(qkv(row) + skipped + output, y, count);
      };
      const int apart = kept < all ? (queries - skipped) / kTile : 0;
      const int64_t own = std::max(0, std::min(apart, m.tiles()));
      product(*model_.team, member, m, {0, own}, normed, kept, write);
      product(*model_.team, member, m, {own, m.tiles()}, normed, all, write);
      skipped += m.outputs;
    }
  }

  void attention(int member, const Layer& layer, T* cache, int64_t kept) {
    const Block& block = layer.blocks.front();
    const int heads = shape_.heads + shape_.key_heads, queries = shape_.heads * shape_.head_dim;
    prepare(member, block, batch_.count);
    project(member, block, kept, batch_.count);
    model_.team->barrier();
    if (is_wide(block.query_norm) || is_wide(block.key_norm)) {
      model_.team->each(member, batch_.count, [&](int64_t row) {
        if (row < kept) norm_wide(block.query_norm, qkv(row));
        norm_wide(block.key_norm, qkv(row) + queries);
      });
    }
    model_.team->each(member, batch_.count * heads, [&](int64_t i) {
      const int64_t row = i / heads;
      const int head = static_cast<int>(i % heads);
      if (row < kept || head >= shape_.heads) place(layer, cache, row, head);
    });
    if (kept == 0) return;
    const T* values = cache + shape_.key_heads * cache_.slots * shape_.head_dim;
    look_.run(member, kept, [&](int64_t row) {
      const int64_t *line = batch_.lines + batch_.line_first[row], *first = batch_.line_first + row;
      Seen<T> seen{cache, values, batch_.tables[row], batch_.in_table[row], line,
                   first[1] - first[0]};
      if (layer.window > 0) seen.hidden = std::max<int64_t>(0, seen.count() - layer.window);
      return std::make_pair(seen, cache_.slots * shape_.head_dim);
    });
    add_attended(member, block, kept);
  }

  void read_other(int member, const Layer& layer, int at, int64_t kept) {
    const Block& block = layer.blocks[1 + at];
    prepare(member, block, kept);
    project(member, block, kept, kept);
    model_.team->barrier();
    model_.team->each(member, kept * shape_.heads, [&](int64_t i) {
      const int64_t row = i / shape_.heads;
      turn(block.query_norm, layer.rotary, row, qkv(row) + i % shape_.heads * shape_.head_dim);
    });
    look_.run(member, kept, [&](int64_t row) {
      const Other& other = batch_.others[row * shape_.others + at];
      const Seen<T> seen{static_cast<const T*>(other.keys), static_cast<const T*>(other.values),
                         nullptr, batch_.in_others[row], nullptr, 0};
      return std::make_pair(seen, other.stride);
    });
    add_attended(member, block, kept);
  }

  // Whether a norm is of all heads together, which comes before heads are turned.
  bool is_wide(const std::vector<float>& weight) const {
    return weight.size() > static_cast<size_t>(shape_.head_dim);
  }
  void norm_wide(const std::vector<float>& weight, float* own) {
    if (is_wide(weight)) norm(own, weight.data(), weight.size(), shape_.norm_epsilon, own);
  }

  // Norm and rotary embedding of one head.
  void turn(const std::vector<float>& weight, int rotary, int64_t row, float* own) {
    if (!weight.empty() && !is_wide(weight)) {
      norm(own, weight.data(), shape_.head_dim, shape_.norm_epsilon, own);
    }
    if (rotary < 0) return;
    const slipstream::Rotary& by = model_.rotaries[rotary];
    const int64_t first = batch_.positions[row] * by.half;
    rotate(own, by.cos.data() + first, by.sin.data() + first, 2 * by.half);
  }

  // Turns one head of a token; a key goes into the cache, and the value beside it.
  void place(const Layer& layer, T* cache, int64_t row, int head) {
    const int dim = shape_.head_dim, at = head - shape_.heads;
    float* own = qkv(row) + head * dim;
    const Block& block = layer.blocks.front();
    turn(at < 0 ? block.query_norm : block.key_norm, layer.rotary, row, own);
    if (at < 0) return;
    put(own, cache, at, batch_.slots[row]);
    put(own + shape_.key_heads * dim, cache, shape_.key_heads + at, batch_.slots[row]);
  }

  void put(const float* from, T* cache, int head, int64_t slot) {
    const int dim = shape_.head_dim;
    T* goal = cache + (head * cache_.slots + slot) * dim;
    for (int d = 0; d < dim; ++d) {
      if constexpr (std::is_same_v<T, float>) {
        goal[d] = from[d];
      } else {
        goal[d] = to_bfloat16(from[d]);
      }
    }
  }

  void mlp(int member, const Block& block, int64_t rows) {
    prepare(member, block, rows);
    const Tokens normed{buffers_.normed.data(), &buffers_.normed_codes};
    for (int at = 0; at < 2; ++at) {  // gates, then what they are for, a tile of each in turn
      const auto write = [&](int64_t row, int output, Lanes y, int) {
        store(buffers_.wide.data() + row * wide_width_ + 2 * output + at * kTile, y);
      };
      product(*model_.team, member, block.into[at], normed, rows, write);
    }
    model_.team->barrier();
    model_.team->each(member, rows, [&](int64_t row) {
      float* out = buffers_.gated.data() + row * shape_.mlp;
      gate(buffers_.wide.data() + row * wide_width_, shape_.mlp, shape_.is_gelu, out);
      encode(form(block.out.kind), out, row, buffers_.gated_codes);
    });
    add_product(member, block, {buffers_.gated.data(), &buffers_.gated_codes}, rows);
  }

  // Adds what was attended to, times the block's last matrix, to the residual stream.
  void add_attended(int member, const Block& block, int64_t rows) {
    const Matrix& m = block.out;
    const float* values = buffers_.attended.data();
    if (form(m.kind) != kAsTheyAre) {
      model_.team->each(member, rows, [&](int64_t row) {
        encode(form(m.kind), values + row * m.inputs, row, buffers_.attended_codes);
      });
    }
    add_product(member, block, {values, &buffers_.attended_codes}, rows);
  }

  // Adds the block's last matrix times `tokens` [rows, inputs] to the residual stream.
  void add_product(int member, const Block& block, const Tokens& tokens, int64_t rows) {
    const bool is_sum = block.norm_after.empty();
    const auto write = [&](int64_t row, int output, Lanes y, int count) {
      if (is_sum) {
        add_some(shape_.residual_scale, y, count, x(row) + output);
      } else {
        store_some(normed(row) + output, y, count);
      }
    };
    product(*model_.team, member, block.out, tokens, rows, write);
    model_.team->barrier();
    if (!is_sum) model_.team->each(member, rows, [&](int64_t row) { add_normed(block, row); });
  }

  void add_normed(const Block& block, int64_t row) {
    float* own = normed(row);
    norm(own, block.norm_after.data(), shape_.hidden, shape_.norm_epsilon, own);
    for (int i = 0; i < shape_.hidden; i += kLanes) {
      const int count = std::min(kLanes, shape_.hidden - i);
      add_some(shape_.residual_scale, load_some(own + i, count), count, x(row) + i);
    }
  }

  Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Batch& batch_;
  float* const hidden_;
  const int qkv_width_, wide_width_;
  slipstream::Buffers& buffers_;
  Look<T> look_;
};

inline void forward(Model& model, const Cache& cache, const Batch& batch, float* hidden) {
  const auto run = [&](auto forward) { model.team->run([&](int member) { forward.run(member); }); };
  if (model.shape.keys_are_bfloat16) {
    run(Forward<BFloat16>(model, cache, batch, hidden));
  } else {
    run(Forward<float>(model, cache, batch, hidden));
  }
}

inline void multiply(Team& team, const Matrix& m, const float* x, int64_t rows, float* y) {
  Coded coded;
  if (form(m.kind) != kAsTheyAre) coded.resize(rows, m.inputs);
  team.run([&](int member) {
    if (form(m.kind) != kAsTheyAre) {
      team.each(member, rows, [&](int64_t i) { encode(form(m.kind), x + i * m.inputs, i, coded); });
    }
    product(team, member, m, {x, &coded}, rows, [&](int64_t row, int output, Lanes out, int count) {
      store_some(y + row * m.outputs + output, out, count);
    });
  });
}

}  // namespace SLIPSTREAM_ISA
