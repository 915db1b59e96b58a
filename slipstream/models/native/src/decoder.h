// The forward of a decoder: every thread of the team runs it, barriers separate its steps. Layers
// may have cross-attentions besides, as drafts have over their target's keys.
#pragma once

#include "blocks.h"
#include "elementwise.h"
#include "attention_scheduler.h"
#include "packing.h"
#include "products.h"

namespace SLIPSTREAM_ISA {

using slipstream::Block;
using slipstream::Cache;
using slipstream::Layer;
using slipstream::Model;
using slipstream::CrossKv;
using slipstream::NormedTokens;

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
        scheduler_(shape_, batch, *model.team, qkv_width_, buffers_) {
    buffers_.x.resize(batch.count * shape_.hidden);
    buffers_.qkv.resize(batch.count * qkv_width_);
    buffers_.wide.resize(batch.count * wide_width_);
    buffers_.gated.resize(batch.count * shape_.mlp);
    buffers_.normed.resize(model.team->size());
    for (NormedTokens& each : buffers_.normed) {
      const int64_t count = &each == &buffers_.normed.front() ? batch.count : 1;
      each.values.resize(count * shape_.hidden);
      each.quantized.resize(count, shape_.hidden);
    }
    buffers_.attended_quantized.resize(batch.count, shape_.heads * shape_.head_dim);
    buffers_.gated_quantized.resize(batch.count, shape_.mlp);
    if (!shape_.has_features) return;
    buffers_.pairs.resize(batch.count * shape_.inputs());
    buffers_.pair_quantized.resize(batch.count, shape_.inputs());
  }

  void run(int thread) {
    embed(thread);
    for (int at = 0; at < shape_.layers; ++at) {
      const int64_t kept = at + 1 < shape_.layers ? batch_.count : batch_.kept;
      write_states(thread, at);
      layer(thread, model_.layers[at], static_cast<T*>(cache_.layers[at]), kept);
    }
    write_states(thread, shape_.layers);
    model_.team->each(thread, batch_.kept, [&](int64_t row) {
      float* state = hidden_ + row * shape_.hidden;
      rms_norm(x(row), model_.norm.data(), shape_.hidden, shape_.norm_epsilon, state);
      if (!shape_.has_features) return;
      const float* output = shape_.norms_output ? state : x(row);
      std::copy_n(output, shape_.hidden, batch_.outputs + row * shape_.hidden);
    });
  }

 private:
  float* x(int64_t row) { return buffers_.x.data() + row * shape_.hidden; }
  float* normed(int64_t row) {
    return buffers_.normed.front().values.data() + row * shape_.hidden;
  }
  float* qkv(int64_t row) { return buffers_.qkv.data() + row * qkv_width_; }

  void embed(int thread) {
    const Kind kind = model_.embedding_kind;
    const size_t bytes = slipstream::row_bytes(kind, shape_.hidden);
    model_.team->each(thread, batch_.count, [&](int64_t row) {
      const int64_t token = batch_.tokens[row];
      if (model_.embedding == nullptr) {
        slipstream::unpack_row(model_.head, token, x(row));
      } else {
        slipstream::dequantise(kind, model_.embedding + token * bytes, shape_.hidden, x(row));
      }
      if (shape_.embedding_scale != 1.0f) {
        multiply_by(shape_.embedding_scale, shape_.hidden, x(row));
      }
      if (shape_.has_features) pair(row);
    });
  }

  // What the attention reads of an embedding and a feature; the feature takes the former's place.
  void pair(int64_t row) {
    const Block& block = model_.layers.front().blocks.front();
    const float* feature = batch_.features + row * shape_.hidden;
    float *out = buffers_.pairs.data() + row * shape_.inputs(), *second = out + shape_.hidden;
    rms_norm(x(row), block.norm.data(), shape_.hidden, shape_.norm_epsilon, out);
    rms_norm(feature, model_.feature_norm.data(), shape_.hidden, shape_.norm_epsilon, second);
    std::copy_n(shape_.norms_residual ? second : feature, shape_.hidden, x(row));
    quantize(forms_of(block), out, row, buffers_.pair_quantized);
  }

  // Of the first `kept` rows; the others have keys and values alone.
  void layer(int thread, const Layer& layer, T* cache, int64_t kept) {
    attention(thread, layer, cache, kept);
    if (kept == 0) return;
    for (int at = 0; at < shape_.num_cross && batch_.cross; ++at)
      cross_attention(thread, layer, at, kept);
    mlp(thread, layer.blocks.back(), kept);
  }

  static int forms_of(const Block& block) {
    int forms = kFloat;
    for (const Matrix& m : block.into) forms |= form(m.kind);
    return forms;
  }

  // Tokens behind a block's norm. Of one token each thread has its own: none waits for another.
  Tokens prepared(int thread, const Block& block, int64_t rows) {
    const int forms = forms_of(block);
    NormedTokens& own = buffers_.normed[rows == 1 ? thread : 0];
    const auto prepare = [&](int64_t row) {
      float* out = own.values.data() + row * shape_.hidden;
      if (block.norm.empty()) {
        std::copy_n(x(row), shape_.hidden, out);
      } else {
        rms_norm(x(row), block.norm.data(), shape_.hidden, shape_.norm_epsilon, out);
      }
      quantize(forms, out, row, own.quantized);
    };
    if (rows == 1) {
      prepare(0);
    } else {
      model_.team->each(thread, rows, prepare);
    }
    return {own.values.data(), &own.quantized};
  }

  // Heads of all tokens; queries of the first `kept` ones alone.
  void project(int thread, const Block& block, const Tokens& tokens, int64_t kept, int64_t all) {
    const int queries = shape_.heads * shape_.head_dim;
    int skipped = 0;
    for (const Matrix& m : block.into) {
      const auto write = [&](int64_t row, int output, Lanes y, int count) {
        store_partial(qkv(row) + skipped + output, y, count);
      };
      const int apart = kept < all ? (queries - skipped) / kTile : 0;
      const int64_t own = std::max(0, std::min(apart, m.tiles()));
      matmul(*model_.team, thread, m, {0, own}, tokens, kept, write);
      matmul(*model_.team, thread, m, {own, m.tiles()}, tokens, all, write);
      skipped += m.outputs;
    }
  }

  void attention(int thread, const Layer& layer, T* cache, int64_t kept) {
    const Block& block = layer.blocks.front();
    const int heads = shape_.heads + shape_.key_heads, queries = shape_.heads * shape_.head_dim;
    if (shape_.has_features) {
      const Tokens pairs{buffers_.pairs.data(), &buffers_.pair_quantized};
      project(thread, block, pairs, kept, batch_.count);
    } else {
      project(thread, block, prepared(thread, block, batch_.count), kept, batch_.count);
    }
    model_.team->barrier();
    if (is_wide(block.query_norm) || is_wide(block.key_norm)) {
      model_.team->each(thread, batch_.count, [&](int64_t row) {
        if (row < kept) rms_norm_heads(block.query_norm, qkv(row));
        rms_norm_heads(block.key_norm, qkv(row) + queries);
      });
    }
    model_.team->each(thread, batch_.count * heads, [&](int64_t i) {
      const int64_t row = i / heads;
      const int head = static_cast<int>(i % heads);
      if (row < kept || head >= shape_.heads) write_kv(layer, cache, row, head);
    });
    if (kept == 0) return;
    const T* values = cache + shape_.key_heads * cache_.slots * shape_.head_dim;
    attend(thread, block, kept, [&](int64_t row) {
      const int64_t *line = batch_.ancestors + batch_.first_ancestor[row],
                    *first = batch_.first_ancestor + row;
      KvSpan<T> seen{cache, values, batch_.block_tables[row], batch_.num_in_table[row], line,
                   first[1] - first[0]};
      if (layer.window > 0) seen.hidden = std::max<int64_t>(0, seen.count() - layer.window);
      return std::make_pair(seen, cache_.slots * shape_.head_dim);
    });
  }

  void cross_attention(int thread, const Layer& layer, int at, int64_t kept) {
    const Block& block = layer.blocks[1 + at];
    project(thread, block, prepared(thread, block, kept), kept, kept);
    model_.team->barrier();
    const auto find = [&](int64_t row) {
      const CrossKv& other = batch_.cross[row * shape_.num_cross + at];
      const KvSpan<T> seen{static_cast<const T*>(other.keys), static_cast<const T*>(other.values),
                         nullptr, batch_.num_read[row], nullptr, 0};
      return std::make_pair(seen, other.stride);
    };
    const auto turn = [&](int64_t head) {
      for (int64_t row = 0; row < kept; ++row) {
        norm_and_rope(block.query_norm, layer.rotary, row, qkv(row) + head * shape_.head_dim);
      }
    };
    if (scheduler_.splits_heads(kept, find)) {  // and so no thread needs another one's heads
      const Span own = scheduler_.own_heads(thread);
      for (int64_t head = own.first; head < own.last; ++head) turn(head);
    } else {
      model_.team->each(thread, shape_.heads, turn);
    }
    attend(thread, block, kept, find);
  }

  // Whether a norm is of all heads together, which comes before heads are turned.
  bool is_wide(const std::vector<float>& weight) const {
    return weight.size() > static_cast<size_t>(shape_.head_dim);
  }
  void rms_norm_heads(const std::vector<float>& weight, float* own) {
    if (is_wide(weight)) rms_norm(own, weight.data(), weight.size(), shape_.norm_epsilon, own);
  }

  // Norm and rotary embedding of one head.
  void norm_and_rope(const std::vector<float>& weight, int rotary, int64_t row, float* own) {
    if (!weight.empty() && !is_wide(weight)) {
      rms_norm(own, weight.data(), shape_.head_dim, shape_.norm_epsilon, own);
    }
    if (rotary < 0) return;
    const slipstream::Rotary& by = model_.rotaries[rotary];
    const int64_t first = batch_.positions[row] * by.half;
    rope(own, by.cos.data() + first, by.sin.data() + first, 2 * by.half);
  }

  // Turns one head of a token; a key goes into the cache, and the value beside it.
  void write_kv(const Layer& layer, T* cache, int64_t row, int head) {
    const int dim = shape_.head_dim, at = head - shape_.heads;
    float* own = qkv(row) + head * dim;
    const Block& block = layer.blocks.front();
    norm_and_rope(at < 0 ? block.query_norm : block.key_norm, layer.rotary, row, own);
    if (at < 0) return;
    store_kv(own, cache, at, batch_.slots[row], dim);
    store_kv(own + shape_.key_heads * dim, cache, shape_.key_heads + at, batch_.slots[row], dim);
  }

  // Writes the hidden states that a layer takes in, in two halves, where they are kept.
  void write_states(int thread, int layer) {
    if (cache_.states == nullptr || cache_.states[layer] == nullptr) return;
    T* states = static_cast<T*>(cache_.states[layer]);
    const int half = shape_.hidden / 2;
    model_.team->each(thread, batch_.count, [&](int64_t row) {
      store_kv(x(row), states, 0, batch_.slots[row], half);
      store_kv(x(row) + half, states, 1, batch_.slots[row], half);
    });
  }

  void store_kv(const float* from, T* cache, int head, int64_t slot, int dim) {
    T* dst = cache + (head * cache_.slots + slot) * dim;
    for (int d = 0; d < dim; ++d) {
      if constexpr (std::is_same_v<T, float>) {
        dst[d] = from[d];
      } else {
        dst[d] = to_bfloat16(from[d]);
      }
    }
  }

  void mlp(int thread, const Block& block, int64_t rows) {
    const Tokens normed = prepared(thread, block, rows);
    for (int at = 0; at < 2; ++at) {  // gates, then what they are for, a tile of each in turn
      const auto write = [&](int64_t row, int output, Lanes y, int) {
        store(buffers_.wide.data() + row * wide_width_ + 2 * output + at * kTile, y);
      };
      matmul(*model_.team, thread, block.into[at], normed, rows, write);
    }
    model_.team->barrier();
    each_part(thread, rows, shape_.mlp, [&](int64_t row, Span some) {
      float* out = buffers_.gated.data() + row * shape_.mlp;
      glu(buffers_.wide.data() + row * wide_width_, some, shape_.is_gelu, out);
      quantize(form(block.out.kind), out, row, some, buffers_.gated_quantized);
    });
    add_product(thread, block, {buffers_.gated.data(), &buffers_.gated_quantized}, rows);
  }

  // Does `work(row, columns)` for all columns of rows, whole groups of them; threads share a row
  // where there are more of them than rows. Then waits for the other threads.
  template <class F>
  void each_part(int thread, int64_t rows, int width, const F& work) {
    const int parts = rows < model_.team->size() ? model_.team->size() : 1;
    model_.team->each(thread, rows * parts, [&](int64_t i) {
      const Span own = slipstream::part((width + kGroup - 1) / kGroup, i % parts, parts);
      work(i / parts, {own.first * kGroup, std::min<int64_t>(own.last * kGroup, width)});
    });
  }

  // Adds what tokens attend to, see `AttentionScheduler`, times the block's last matrix, to the
  // residual stream.
  template <class Find>
  void attend(int thread, const Block& block, int64_t rows, const Find& find) {
    const Matrix& m = block.out;
    const float* values = buffers_.attended.data();
    const auto finish = [&](int64_t row, Span some) {
      quantize(form(m.kind), values + row * m.inputs, row, some, buffers_.attended_quantized);
    };
    if (scheduler_.splits_heads(rows, find)) {
      const Span own = scheduler_.own_heads(thread);
      scheduler_.run_heads(thread, rows, find);
      for (int64_t row = 0; row < rows; ++row) {
        finish(row, {own.first * shape_.head_dim, own.last * shape_.head_dim});
      }
      model_.team->barrier();
    } else {
      scheduler_.run(thread, rows, find);
      if (form(m.kind) != kFloat) each_part(thread, rows, m.inputs, finish);
    }
    add_product(thread, block, {values, &buffers_.attended_quantized}, rows);
  }

  // Adds the block's last matrix times `tokens` [rows, inputs] to the residual stream.
  void add_product(int thread, const Block& block, const Tokens& tokens, int64_t rows) {
    const bool is_sum = block.norm_after.empty();
    const auto write = [&](int64_t row, int output, Lanes y, int count) {
      if (is_sum) {
        add_partial(shape_.residual_scale, y, count, x(row) + output);
      } else {
        store_partial(normed(row) + output, y, count);
      }
    };
    matmul(*model_.team, thread, block.out, tokens, rows, write);
    model_.team->barrier();
    if (!is_sum) model_.team->each(thread, rows, [&](int64_t row) { add_normed(block, row); });
  }

  void add_normed(const Block& block, int64_t row) {
    float* own = normed(row);
    rms_norm(own, block.norm_after.data(), shape_.hidden, shape_.norm_epsilon, own);
    for (int i = 0; i < shape_.hidden; i += kLanes) {
      const int count = std::min(kLanes, shape_.hidden - i);
      add_partial(shape_.residual_scale, load_partial(own + i, count), count, x(row) + i);
    }
  }

  Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Batch& batch_;
  float* const hidden_;
  const int qkv_width_, wide_width_;
  slipstream::Buffers& buffers_;
  AttentionScheduler<T> scheduler_;
};

inline void forward(Model& model, const Cache& cache, const Batch& batch, float* hidden) {
  const auto run = [&](auto forward) { model.team->run([&](int thread) { forward.run(thread); }); };
  if (model.shape.keys_are_bfloat16) {
    run(Forward<BFloat16>(model, cache, batch, hidden));
  } else {
    run(Forward<float>(model, cache, batch, hidden));
  }
}

inline void multiply(Team& team, const Matrix& m, const float* x, int64_t rows, float* y) {
  QuantizedActivations quantized;
  if (form(m.kind) != kFloat) quantized.resize(rows, m.inputs);
  team.run([&](int thread) {
    if (form(m.kind) != kFloat) {
      team.each(thread, rows,
                [&](int64_t i) { quantize(form(m.kind), x + i * m.inputs, i, quantized); });
    }
    matmul(team, thread, m, {x, &quantized}, rows,
           [&](int64_t row, int output, Lanes out, int count) {
             store_partial(y + row * m.outputs + output, out, count);
           });
  });
}

}  // namespace SLIPSTREAM_ISA
