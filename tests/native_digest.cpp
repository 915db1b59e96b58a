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
void* slipstream_model(const Shape*, const char*, const void*, const void*, Kind);
void slipstream_free_model(void*);
int32_t slipstream_set_rotary(void*, int32_t, int32_t, int32_t, const float*, const float*);
int32_t slipstream_set_matrix(void*, int32_t, int32_t, int32_t, const Weights*);
int32_t slipstream_set_norm(void*, int32_t, int32_t, int32_t, int32_t, const float*);
int32_t slipstream_forward(void*, const Cache*, const Batch*, float*);
int32_t slipstream_logits(void*, const float*, int64_t, float*);
void slipstream_quantise(const float*, int64_t, void*);
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
  std::vector<uint8_t> out(count / size.elements * size.bytes);
  for (uint8_t& each : out) each = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  for (size_t at = 0; at < out.size(); at += size.bytes) {
    const bool is_super = kind == Kind::kQ4_K || kind == Kind::kQ6_K;
    uint8_t* scales = out.data() + at + (kind == Kind::kQ6_K ? 208 : 0);
    const bool has_minimum = kind == Kind::kQ4_1 || kind == Kind::kQ4_K;
    for (int i = 0; i <= has_minimum; ++i) scales[2 * i + 1] = is_super ? 0x08 : 0x20;
  }
  return out;
}

void set(void* model, int layer, int block, int place, Kind kind, int outputs, int inputs) {
  const std::vector<float> bias = floats(outputs, 0.1f);
  const std::vector<float> wide = floats(outputs * inputs, 0.3f);
  std::vector<uint16_t> halves;
  for (float each : wide) halves.push_back(upper_half(each));
  std::vector<uint8_t> coded;
  const void* values = wide.data();
  if (kind == Kind::kBFloat16 || kind == Kind::kNarrowFloat32) values = halves.data();
  if (is_coded(kind)) values = (coded = blocks(kind, wide.size())).data();
  const Weights weights{kind, outputs, inputs, values, bias.data()};
  slipstream_set_matrix(model, layer, block, place, &weights);
}

void fill(void* model, const Shape& shape, Kind kind) {
  const int dim = shape.head_dim, width = (shape.heads + 2 * shape.key_heads) * dim;
  const size_t angles = kTokens * (dim / 2);
  // Named, for compilers differ in which argument they compute first.
  const std::vector<float> cos = floats(angles, 1), sin = floats(angles, 1);
  slipstream_set_rotary(model, 0, kTokens, dim / 2, cos.data(), sin.data());
  for (int at = 0; at < kLayers; ++at) {
    set(model, at, 0, 0, kind, width, shape.hidden);
    set(model, at, 0, 1, kind, shape.hidden, shape.heads * dim);
    // Gates and their values, in turns of a tile, each filled up to whole tiles.
    set(model, at, 1, 0, kind, (shape.mlp + kTile - 1) / kTile * kTile * 2, shape.hidden);
    set(model, at, 1, 1, kind, shape.hidden, shape.mlp);
    const std::vector<float> query = floats(dim, 0.2f, 1), key = floats(dim, 0.2f, 1);
    slipstream_set_norm(model, at, 0, 1, dim, query.data());
    slipstream_set_norm(model, at, 0, 2, dim, key.data());
    for (int block = 0; block < 2; ++block) {
      const std::vector<float> norm = floats(shape.hidden, 0.2f, 1);
      slipstream_set_norm(model, at, block, 0, shape.hidden, norm.data());
    }
  }
  slipstream_set_norm(model, -1, 0, 0, shape.hidden, floats(shape.hidden, 0.2f, 1).data());
  set(model, -1, 0, 0, kind, kVocabulary, shape.hidden);
}

// A forward of all tokens at once, and the logits, into the digest.
void run(void* model, const Shape& shape) {
  const size_t element = shape.keys_are_bfloat16 ? 2 : 4;
  std::vector<std::vector<uint8_t>> keys(
      kLayers, std::vector<uint8_t>(2 * shape.key_heads * kTokens * shape.head_dim * element));
  void* layers[kLayers];
  for (int at = 0; at < kLayers; ++at) layers[at] = keys[at].data();
  std::vector<int64_t> numbers, tokens, in_table(kTokens, 0), line_first{0}, lines;
  for (int64_t i = 0; i < kTokens; ++i) {
    numbers.push_back(i);
    tokens.push_back((i * 7 + 3) % kVocabulary);
    for (int64_t j = 0; j <= i; ++j) lines.push_back(j);
    line_first.push_back(static_cast<int64_t>(lines.size()));
  }
  const std::vector<const int64_t*> tables(kTokens, numbers.data());
  const Batch batch{kTokens,         kTokens,      tokens.data(),     numbers.data(),
                    numbers.data(),  tables.data(), in_table.data(),  lines.data(),
                    line_first.data(), nullptr,    nullptr};
  const Cache cache{layers, kTokens};
  std::vector<float> hidden(kTokens * shape.hidden), logits(kTokens * kVocabulary);
  if (slipstream_forward(model, &cache, &batch, hidden.data()) != 0) std::abort();
  if (slipstream_logits(model, hidden.data(), kTokens, logits.data()) != 0) std::abort();
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
    slipstream_quantise(values.data(), values.size(), out.data());
    add(out.data(), out.size());
  }
}

}  // namespace

int main(int, char** arguments) {
  const char* name = slipstream_kernels(arguments[1]);
  if (name == nullptr) return std::printf("none\n"), 0;
  for (Kind kind : {Kind::kFloat32, Kind::kBFloat16, Kind::kQ4_0, Kind::kQ4_1, Kind::kQ8_0,
                    Kind::kQ4_K, Kind::kQ6_K, Kind::kNarrowFloat32}) {
    for (int threads : {1, 3}) {
      state = 1;
      // Odd sizes, but for blocks, of which a row has whole ones.
      const bool is_bfloat16 = kind == Kind::kBFloat16;
      const Shape odd{kLayers, 60, 6, 2, 20, 75, 0, is_bfloat16, 1e-6f, 0.22f};
      const Shape whole{kLayers, 256, 8, 2, 32, 512, 0, is_bfloat16, 1e-6f, 0.18f};
      const Shape& shape = is_coded(kind) ? whole : odd;
      void* team = slipstream_team(threads);
      const std::vector<float> embedding = floats(kVocabulary * shape.hidden, 1);
      void* model = slipstream_model(&shape, name, team, embedding.data(), Kind::kFloat32);
      fill(model, shape, kind);
      run(model, shape);
      slipstream_free_model(model);
      slipstream_free_team(team);
    }
    if (kind == Kind::kQ8_0) quantise();
    std::printf("%016llx\n", static_cast<unsigned long long>(digest));
  }
}
