// The C interface, for ctypes. Nothing is thrown through it: what can fail gives null or -1, and
// what is not of the model's sizes, or of the length that comes with a pointer, -2.
#include <memory>

#include "blocks.h"
#include "checks.h"
#include "handle.h"
#include "packing.h"
#include "processor.h"
#include "quantise.h"
#include "roofline.h"

using namespace slipstream;

// The name of the kernels that `name` stands for, null for none; "" stands for the fastest.
SLIPSTREAM_API const char* slipstream_kernels(const char* name) {
  const Kernels* found = kernels(name);
  return found == nullptr ? nullptr : found->name;
}

SLIPSTREAM_API void* slipstream_team(int32_t size) {
  try {
    return new std::shared_ptr<Team>(std::make_shared<Team>(size));
  } catch (const std::exception&) {
    return nullptr;
  }
}

SLIPSTREAM_API void slipstream_free_team(void* team) {
  delete static_cast<std::shared_ptr<Team>*>(team);
}

// The embedding [vocabulary, hidden] is read in place, in the element type or blocks of its kind.
// `slipstream_set_rotary` has to follow, and all weights. The model is written to `made`.
SLIPSTREAM_API int32_t slipstream_model(const Shape* shape, const char* name, const void* team,
                                        const Weights* embedding, void** made) {
  const Kernels* chosen = kernels(name);
  if (chosen == nullptr || !is_possible(*shape)) return kMisfit;
  if (!is_whole(*embedding) || embedding->inputs != shape->hidden) return kMisfit;
  return guarded([&] {
    auto handle = std::make_unique<Handle>();
    Model& model = handle->model;
    handle->kernels = chosen;
    model.shape = *shape;
    model.team = *static_cast<const std::shared_ptr<Team>*>(team);
    model.layers.resize(shape->layers);
    for (Layer& layer : model.layers) layer.blocks.resize(2 + shape->num_cross);
    model.embedding = static_cast<const uint8_t*>(embedding->values);
    model.embedding_kind = embedding->kind;
    model.vocabulary = embedding->outputs;
    *made = handle.release();
    return 0;
  });
}

SLIPSTREAM_API void slipstream_free_model(void* handle) { delete static_cast<Handle*>(handle); }

// The rotary embedding of a number, cos and sin [positions, half] of `count` elements each; again
// for more positions. Numbers follow each other. Returns 0, as all that follow do.
SLIPSTREAM_API int32_t slipstream_set_rotary(void* handle, int32_t number, int64_t positions,
                                             int64_t half, const float* cos, const float* sin,
                                             int64_t count) {
  Handle* own = static_cast<Handle*>(handle);
  return guarded([&]() -> int32_t {
    std::lock_guard<std::mutex> lock(own->forward);
    std::vector<Rotary>& rotaries = own->model.rotaries;
    if (number < 0 || number > static_cast<int64_t>(rotaries.size())) return kMisfit;
    if (half < 1 || half > own->model.shape.head_dim / 2) return kMisfit;
    if (positions < 1 || count % half != 0 || count / half != positions) return kMisfit;
    if (rotaries.size() <= static_cast<size_t>(number)) rotaries.resize(number + 1);
    rotaries[number].half = static_cast<int>(half);
    rotaries[number].cos.assign(cos, cos + count);
    rotaries[number].sin.assign(sin, sin + count);
    return 0;
  });
}

// A layer's window and the number of its rotary embedding: see `Layer`.
SLIPSTREAM_API int32_t slipstream_set_layer(void* handle, int32_t layer, int64_t window,
                                            int32_t rotary) {
  Model& model = static_cast<Handle*>(handle)->model;
  if (!has_block(model, layer, 0) || window < 0 || rotary < -1) return kMisfit;
  model.layers[layer].window = window, model.layers[layer].rotary = rotary;
  return 0;
}

// A block's first matrices (`place` 0), whose outputs follow each other, or its last (1); the head
// for layer -1.
SLIPSTREAM_API int32_t slipstream_set_matrices(void* handle, int32_t layer, int32_t block,
                                               int32_t place, const Weights* weights,
                                               int32_t count) {
  Model& model = static_cast<Handle*>(handle)->model;
  return guarded([&]() -> int32_t {
    if (layer < 0) {
      if (count != 1 || !is_whole(*weights) || weights->inputs != model.shape.hidden)
        return kMisfit;
      model.head = packed(*weights, model.weights, *model.team);
      return 0;
    }
    if (!has_block(model, layer, block) || !fits_place(model.shape, block, place, weights, count)) {
      return kMisfit;
    }
    Block& own = model.layers[layer].blocks[block];
    if (place == kOut) {
      own.out = packed(*weights, model.weights, *model.team);
      return 0;
    }
    own.into.clear();
    for (int i = 0; i < count; ++i) {
      own.into.push_back(packed(weights[i], model.weights, *model.team));
    }
    return 0;
  });
}

// Reads embeddings from the head from now on, where that has the same weights: returns 1, or 0
// where packing changed some of them.
SLIPSTREAM_API int32_t slipstream_tie(void* handle) {
  Model& model = static_cast<Handle*>(handle)->model;
  if (model.head.outputs != model.vocabulary) return kMisfit;
  if (!model.head.is_exact) return 0;
  model.embedding = nullptr;
  return 1;
}

// The memory that packed matrices take.
SLIPSTREAM_API int64_t slipstream_weight_bytes(void* handle) {
  return static_cast<int64_t>(static_cast<Handle*>(handle)->model.weights.size());
}

// A norm of a block, by place: before it (0), of queries (1), of keys (2), of what it adds (3); the
// last norm for layer -1, that of features for -2. Those of queries and keys are of one head or of
// all, cross [hidden].
SLIPSTREAM_API int32_t slipstream_set_norm(void* handle, int32_t layer, int32_t block,
                                           int32_t place, const float* norm, int64_t count) {
  Model& model = static_cast<Handle*>(handle)->model;
  return guarded([&]() -> int32_t {
    if (layer >= 0 && !has_block(model, layer, block)) return kMisfit;
    if (norm == nullptr || !fits_norm(model.shape, place, count)) return kMisfit;
    if (layer < 0 && (place != kBefore || layer < -2)) return kMisfit;
    if (layer < 0) {
      (layer == -2 ? model.feature_norm : model.norm).assign(norm, norm + count);
      return 0;
    }
    Block& own = model.layers[layer].blocks[block];
    std::vector<float>* const norms[] = {&own.norm, &own.query_norm, &own.key_norm,
                                         &own.norm_after};
    norms[place]->assign(norm, norm + count);
    return 0;
  });
}

// Final hidden states, of `count` elements: [kept, hidden].
SLIPSTREAM_API int32_t slipstream_forward(void* handle, const Cache* cache, const Batch* batch,
                                          float* hidden, int64_t count) {
  Handle* own = static_cast<Handle*>(handle);
  return guarded([&]() -> int32_t {
    std::lock_guard<std::mutex> lock(own->forward);
    const Model& model = own->model;
    if (!is_complete(model) || !fits_batch(model, *cache, *batch)) return kMisfit;
    if (count != batch->kept * model.shape.hidden) return kMisfit;
    if (!fits_outputs(model.shape, *batch, batch->kept)) return kMisfit;
    own->kernels->forward(own->model, *cache, *batch, hidden);
    return 0;
  });
}

// Weights [outputs, inputs] one by one, in float32 or rounded to bfloat16; the team shares the
// work.
SLIPSTREAM_API int32_t slipstream_dequantise(const void* team, const Weights* weights,
                                             int32_t is_bfloat16, void* out, int64_t bytes) {
  if (!is_whole(*weights)) return kMisfit;
  const int64_t size = is_bfloat16 ? sizeof(BFloat16) : sizeof(float);
  if (bytes != int64_t{weights->outputs} * weights->inputs * size) return kMisfit;
  return guarded([&] {
    dequantise(*weights, **static_cast<const std::shared_ptr<Team>*>(team), is_bfloat16, out);
    return 0;
  });
}

// `count` floats, whole blocks of 32, rounded to blocks of Q8_0, of so many bytes.
SLIPSTREAM_API int32_t slipstream_quantise(const float* values, int64_t count, void* blocks,
                                           int64_t bytes) {
  const BlockSize size = block_size(Kind::kQ8_0);
  if (count < 0 || count % size.elements != 0) return kMisfit;
  if (bytes != count / size.elements * static_cast<int64_t>(size.bytes)) return kMisfit;
  quantise(values, count, static_cast<uint8_t*>(blocks));
  return 0;
}

// The figures of `Roofline` for a model's kernels and weights, measured; takes a tenth of a second.
SLIPSTREAM_API int32_t slipstream_roofline(void* handle, double* figures) {
  Handle* own = static_cast<Handle*>(handle);
  return guarded([&] {
    std::lock_guard<std::mutex> lock(own->forward);
    const Roofline found = roofline(own->model, *own->kernels);
    figures[0] = found.macs, figures[1] = found.bytes;
    figures[2] = found.macs_per_s, figures[3] = found.bytes_per_s;
    return 0;
  });
}

// Logits [rows, outputs] of hidden states [rows, hidden], of so many elements.
SLIPSTREAM_API int32_t slipstream_logits(void* handle, const float* hidden, int64_t num_hidden,
                                         float* logits, int64_t num_logits) {
  Handle* own = static_cast<Handle*>(handle);
  const Matrix& head = own->model.head;
  if (head.data == nullptr || num_hidden < 0 || num_hidden % head.inputs != 0) return kMisfit;
  const int64_t rows = num_hidden / head.inputs;
  if (num_logits != rows * head.outputs) return kMisfit;
  return guarded([&] {
    own->kernels->multiply(*own->model.team, head, hidden, rows, logits);
    return 0;
  });
}

// Tokens that a draw from `scores` [count] can give, see `draws.h`; `tokens` has room for `room`.
SLIPSTREAM_API int64_t slipstream_sampling_candidates(void* handle, const float* scores,
                                                      int64_t count, float temperature,
                                                      uint32_t first, uint32_t second, float* best,
                                                      int32_t* tokens, int64_t room) {
  if (count < 0 || count > INT32_MAX || room < count) return kMisfit;
  const Kernels* own = static_cast<Handle*>(handle)->kernels;
  return own->sampling_candidates(scores, count, temperature, {first, second}, best, tokens);
}
