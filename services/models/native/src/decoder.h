// The forward of a decoder: every member of the team runs it, barriers separate its steps.
#pragma once

#include "attention.h"
#include "elementwise.h"
#include "products.h"

namespace SLIPSTREAM_ISA {

using slipstream::Cache;
using slipstream::Layer;
using slipstream::Model;

template <class T>
class Forward {
 public:
  Forward(Model& model, const Cache& cache, const Batch& batch, float* hidden)
      : model_(model),
        shape_(model.shape),
        cache_(cache),
        batch_(batch),
        rows_(batch.count),
        hidden_(hidden),
        qkv_width_((shape_.heads + 2 * shape_.key_heads) * shape_.head_dim),
        wide_width_((shape_.mlp + kTile - 1) / kTile * kTile * 2),
        buffers_(model.buffers) {
    buffers_.x.resize(rows_ * shape_.hidden);
    buffers_.normed.resize(rows_ * shape_.hidden);
    buffers_.qkv.resize(rows_ * qkv_width_);
    buffers_.attended.resize(rows_ * shape_.heads * shape_.head_dim);
    buffers_.wide.resize(rows_ * wide_width_);
    buffers_.gated.resize(rows_ * shape_.mlp);
    buffers_.scores.resize(model.team->size());
    buffers_.visible.resize(model.team->size());
  }

  void run(int member) {
    embed(member);
    for (int at = 0; at < shape_.layers; ++at) {
      attention(member, model_.layers[at], static_cast<T*>(cache_.layers[at]));
      mlp(member, model_.layers[at]);
    }
    each_row(member, [&](int64_t row) {
      norm(x(row), model_.norm.data(), shape_.hidden, shape_.norm_epsilon,
           hidden_ + row * shape_.hidden);
    });
  }

 private:
  float* x(int64_t row) { return buffers_.x.data() + row * shape_.hidden; }
  float* qkv(int64_t row) { return buffers_.qkv.data() + row * qkv_width_; }

  template <class F>
  void each(int member, int64_t count, const F& work) {
    const Span own = slipstream::part(count, member, model_.team->size());
    for (int64_t i = own.first; i < own.last; ++i) work(i);
    model_.team->barrier();
  }
  template <class F>
  void each_row(int member, const F& work) {
    each(member, rows_, work);
  }

  void embed(int member) {
    const int size = shape_.hidden;
    each_row(member, [&](int64_t row) {
      const int64_t first = batch_.tokens[row] * size;
      if (model_.embedding_float32) {
        std::memcpy(x(row), model_.embedding_float32 + first, size * sizeof(float));
        return;
      }
      for (int i = 0; i < size; ++i) {
        x(row)[i] = to_float(BFloat16{model_.embedding_bfloat16[first + i]});
      }
    });
  }

  // A matrix times what `make(row, values)` leaves in `values` [rows, inputs].
  template <class Make, class Write>
  void multiply(int member, const Matrix& m, std::vector<float>& values, const Make& make,
                const Write& write) {
    each_row(member, [&](int64_t row) { make(row, values.data() + row * m.inputs); });
    product(*model_.team, member, m, values.data(), rows_, write);
    model_.team->barrier();
  }

  void attention(int member, const Layer& layer, T* cache) {
    multiply(
        member, layer.matrices[slipstream::kQueryKeyValue], buffers_.normed,
        [&](int64_t row, float* out) {
          norm(x(row), layer.before_attention.data(), shape_.hidden, shape_.norm_epsilon, out);
        },
        [&](int64_t row, int output, Lanes y, int count) {
          store_some(qkv(row) + output, y, count);
        });
    each(member, rows_ * (shape_.heads + shape_.key_heads), [&](int64_t i) {
      const int heads = shape_.heads + shape_.key_heads;
      place(layer, cache, i / heads, static_cast<int>(i % heads));
    });
    look(member, cache);
    multiply(
        member, layer.matrices[slipstream::kAttentionOutput], buffers_.attended,
        [](int64_t, float*) {}, [&](int64_t row, int output, Lanes y, int count) {
          add_to(row, output, y, count);
        });
  }

  // Turns one head of a token; a key goes into the cache, and the value beside it.
  void place(const Layer& layer, T* cache, int64_t row, int head) {
    const int dim = shape_.head_dim, half = dim / 2;
    float* own = qkv(row) + head * dim;
    const bool is_key = head >= shape_.heads;
    const std::vector<float>& weight = is_key ? layer.key_norm : layer.query_norm;
    if (!weight.empty()) norm(own, weight.data(), dim, shape_.norm_epsilon, own);
    const int64_t first = batch_.positions[row] * half;
    rotate(own, model_.cos.data() + first, model_.sin.data() + first, dim);
    if (!is_key) return;
    const int at = head - shape_.heads;
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

  void look(int member, const T* cache) {
    const int group = shape_.heads / shape_.key_heads, dim = shape_.head_dim;
    // Few tokens: heads are shared out one by one, so that no member waits for another's group.
    const bool is_few = rows_ * shape_.key_heads < 4 * model_.team->size();
    const int together = is_few ? 1 : group, tasks = shape_.heads / together;
    std::vector<int64_t>& slots = buffers_.visible[member];
    int64_t known = -1;
    each(member, rows_ * tasks, [&](int64_t i) {
      const int64_t row = i / tasks;
      const int head = static_cast<int>(i % tasks) * together, key_head = head / group;
      if (row != known) visible_slots(batch_, row, slots);
      known = row;
      const T* keys = cache + key_head * cache_.slots * dim;
      const T* values = keys + shape_.key_heads * cache_.slots * dim;
      float* out = buffers_.attended.data() + (row * shape_.heads + head) * dim;
      attend(shape_, qkv(row) + head * dim, together, keys, values, slots,
             buffers_.scores[member], out);
    });
  }

  void mlp(int member, const Layer& layer) {
    multiply(
        member, layer.matrices[slipstream::kGateUp], buffers_.normed,
        [&](int64_t row, float* out) {
          norm(x(row), layer.before_mlp.data(), shape_.hidden, shape_.norm_epsilon, out);
        },
        [&](int64_t row, int output, Lanes y, int) {
          store(buffers_.wide.data() + row * wide_width_ + output, y);
        });
    multiply(
        member, layer.matrices[slipstream::kDown], buffers_.gated,
        [&](int64_t row, float* out) {
          gate(buffers_.wide.data() + row * wide_width_, shape_.mlp, out);
        },
        [&](int64_t row, int output, Lanes y, int count) { add_to(row, output, y, count); });
  }

  void add_to(int64_t row, int output, Lanes y, int count) {
    float* own = x(row) + output;
    store_some(own, add(load_some(own, count), y), count);
  }

  Model& model_;
  const Shape& shape_;
  const Cache& cache_;
  const Batch& batch_;
  const int64_t rows_;
  float* const hidden_;
  const int qkv_width_, wide_width_;
  slipstream::Buffers& buffers_;
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
  team.run([&](int member) {
    product(team, member, m, x, rows, [&](int64_t row, int output, Lanes out, int count) {
      store_some(y + row * m.outputs + output, out, count);
    });
  });
}

}  // namespace SLIPSTREAM_ISA
