// Prints a digest of what the kernels of a name compute for a model of known weights, in each
// element type: the same on every processor. Python is not needed, so that an emulator can run it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "blocks.h"
#include "model.h"
#include "packing.h"

using namespace slipstream;

extern "C" {
const char* slipstream_kernels(const char*);
void* slipstream_team(int32_t);
void slipstream_free_team(void*);
int32_t slipstream_model(const Shape*, const char*, const void*, const Weights*, void**);
void slipstream_free_model(void*);
int32_t slipstream_set_rotary(void*, int32_t, int64_t, int64_t, const float*, const float*, int64_t);
int32_t slipstream_set_matrices(void*, int32_t, int32_t, int32_t, const Weights*, int32_t);
int32_t slipstream_set_norm(void*, int32_t, int32_t, int32_t, const float*, int64_t);
int32_t slipstream_tie(void*);
int32_t slipstream_forward(void*, const Cache*, const Batch*, float*, int64_t);
int32_t slipstream_logits(void*, const float*, int64_t, float*, int64_t);
int32_t slipstream_quantise(const float*, int64_t, void*, int64_t);
}

namespace {

constexpr int kTokens = 37, kVocabulary = 83, kLayers = 2;
uint64_t digest = 1469598103934665603u;
uint32_t state = 1;

// From -scale to scale, by whole numbers and one division by a power of two.
float next(float scale) {
  state = state * 1664525u + 1013904223u;
  return (static_cast<int>(state >> 12) - (1 << 19)) / static_cast<float>(1 << 19) * scale;
}

void check(int32_t result) {
  if (result < 0) std::abort();
}

std::vector<float> floats(size_t count, float scale, float base = 0.0f) {
  std::vector<float> out(count);
  for (float& each : out) each = base + next(scale);
  return out;
}

void add(const void* data, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    digest = (digest ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  }
}

uint16_t upper_half(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// Blocks of random codes, whose scales are small and finite.
std::vector<uint8_t> blocks(Kind kind, size_t count) {
  const BlockSize size = block_size(kind);
  const bool is_super = size.elements == kSuper;
  const size_t first = kind == Kind::kQ2_K   ? 80
                       : kind == Kind::kQ3_K ? 108
                       : kind == Kind::kQ6_K ? 208
                                             : 0;
  std::vector<uint8_t> out(count / size.elements * size.bytes);
  for (uint8_t& each : out) each = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  for (size_t at = 0; at < out.size(); at += size.bytes) {
    uint8_t* scales = out.data() + at + first;
    const bool has_minimum = kind != Kind::kQ4_0 && encoding_of(kind).has_minimum;
    for (int i = 0; i <= has_minimum; ++i) scales[2 * i + 1] = is_super ? 0x08 : 0x20;
    if (kind == Kind::kMXFP4) *scales = 120;  // an exponent
  }
  return out;
}

// A matrix of random weights, and what it points to.
struct Filled {
  std::vector<float> bias, wide;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> quantized;
  Weights weights;

  Filled(Kind kind, int outputs, int inputs)
      : bias(floats(outputs, 0.1f)), wide(floats(outputs * inputs, 0.3f)) {
    const void* values = wide.data();
    for (float each : wide) {
      halves.push_back(kind == Kind::kFloat16 ? to_float16(each).bits : upper_half(each));
    }
    if (!is_quantized(kind) && kind != Kind::kFloat32) values = halves.data();
    if (is_quantized(kind)) values = (quantized = blocks(kind, wide.size())).data();
    const auto bytes = static_cast<int64_t>(outputs * row_bytes(kind, inputs));
    weights = {kind, outputs, inputs, values, bytes, bias.data(), outputs};
  }
};

void set(void* model, int layer, int block, int place, Kind kind, std::vector<int> outputs,
         int inputs) {
  std::vector<Filled> parts;
  std::vector<Weights> all;
  for (int each : outputs) parts.emplace_back(kind, each, inputs);
  for (const Filled& each : parts) all.push_back(each.weights);
  const int count = static_cast<int>(all.size());
  check(slipstream_set_matrices(model, layer, block, place, all.data(), count));
}

void set_norm(void* model, int layer, int block, int place, int size) {
  const std::vector<float> norm = floats(size, 0.2f, 1);
  check(slipstream_set_norm(model, layer, block, place, norm.data(), size));
}

void fill(void* model, const Shape& shape, Kind kind) {
  const int dim = shape.head_dim, queries = shape.heads * dim, keys = shape.key_heads * dim;
  const size_t angles = kTokens * (dim / 2);
  // Named, for compilers differ in which argument they compute first.
  const std::vector<float> cos = floats(angles, 1), sin = floats(angles, 1);
  check(slipstream_set_rotary(model, 0, kTokens, dim / 2, cos.data(), sin.data(), cos.size()));
  for (int at = 0; at < kLayers; ++at) {
    set(model, at, 0, 0, kind, {queries, keys, keys}, shape.hidden);
    set(model, at, 0, 1, kind, {shape.hidden}, queries);
    set(model, at, 1, 0, kind, {shape.mlp, shape.mlp}, shape.hidden);
    set(model, at, 1, 1, kind, {shape.hidden}, shape.mlp);
    for (int place : {0, 1, 2}) set_norm(model, at, 0, place, place ? dim : shape.hidden);
    set_norm(model, at, 1, 0, shape.hidden);
  }
  set_norm(model, -1, 0, 0, shape.hidden);
  set(model, -1, 0, 0, kind, {kVocabulary}, shape.hidden);
}

// A forward of all tokens at once, and the logits, into the digest.
void run(void* model, const Shape& shape) {
  const size_t element = shape.keys_are_bfloat16 ? 2 : 4;
  std::vector<std::vector<uint8_t>> keys(
      kLayers, std::vector<uint8_t>(2 * shape.key_heads * kTokens * shape.head_dim * element));
  void* layers[kLayers];
  for (int at = 0; at < kLayers; ++at) layers[at] = keys[at].data();
  std::vector<int64_t> numbers, tokens, num_in_table(kTokens, 0), first_ancestor{0}, ancestors;
  for (int64_t i = 0; i < kTokens; ++i) {
    numbers.push_back(i);
    tokens.push_back((i * 7 + 3) % kVocabulary);
    for (int64_t j = 0; j <= i; ++j) ancestors.push_back(j);
    first_ancestor.push_back(static_cast<int64_t>(ancestors.size()));
  }
  const std::vector<const int64_t*> block_tables(kTokens, numbers.data());
  const std::vector<int64_t> sizes(kTokens, kTokens);
  const Batch batch{kTokens, kTokens, tokens.data(), numbers.data(), numbers.data(),
                    block_tables.data(), num_in_table.data(), ancestors.data(),
                    first_ancestor.data(), nullptr, nullptr, sizes.data(),
                    static_cast<int64_t>(ancestors.size())};
  const Cache cache{layers, kTokens, kLayers, static_cast<int64_t>(keys[0].size())};
  std::vector<float> hidden(kTokens * shape.hidden), logits(kTokens * kVocabulary);
  check(slipstream_forward(model, &cache, &batch, hidden.data(), hidden.size()));
  check(slipstream_logits(model, hidden.data(), hidden.size(), logits.data(), logits.size()));
  for (float each : logits) {
    if (each != each) std::abort();  // nothing is shown by the digest of what is not a number
  }
  add(hidden.data(), hidden.size() * sizeof(float));
  add(logits.data(), logits.size() * sizeof(float));
  for (const auto& layer : keys) add(layer.data(), layer.size());
}

// Blocks that floats of many sizes are rounded to, into the digest.
void quantise() {
  state = 1;
  for (float scale : {1.0f, 1e-3f, 1e-7f, 1e-40f, 1e6f, 1e30f}) {
    const std::vector<float> values = floats(3200, scale, scale / 2);
    std::vector<uint8_t> out(values.size() / kGroup * block_size(Kind::kQ8_0).bytes);
    check(slipstream_quantise(values.data(), values.size(), out.data(), out.size()));
    add(out.data(), out.size());
  }
}

}  // namespace

int main(int, char** arguments) {
  const char* name = slipstream_kernels(arguments[1]);
  if (name == nullptr) return std::printf("none\n"), 0;
  for (int number = 0; number <= static_cast<int>(kLastKind); ++number) {
    const Kind kind = static_cast<Kind>(number);
    for (int threads : {1, 3}) {
      state = 1;
      // Odd sizes, but for blocks, of which a row has whole ones.
      const bool is_bfloat16 = kind == Kind::kBFloat16;
      const Shape odd{kLayers, 60, 6, 2, 20, 75, 0, is_bfloat16, 1e-6f, 0.22f};
      const Shape whole{kLayers, 256, 8, 2, 32, 512, 0, is_bfloat16, 1e-6f, 0.18f};
      const Shape& shape = is_quantized(kind) ? whole : odd;
      void* team = slipstream_team(threads);
      const Filled embedding(Kind::kFloat32, kVocabulary, shape.hidden);
      void* model = nullptr;
      check(slipstream_model(&shape, name, team, &embedding.weights, &model));
      fill(model, shape, kind);
      run(model, shape);
      slipstream_tie(model);  // embeddings are the head's rows
      run(model, shape);
      slipstream_free_model(model);
      slipstream_free_team(team);
    }
    if (kind == Kind::kQ8_0) quantise();
    std::printf("%016llx\n", static_cast<unsigned long long>(digest));
  }
}
