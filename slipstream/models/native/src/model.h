// What a decoder is made of, as plain values: shapes, packed weights, and the tokens of a forward.
// Shared by all instruction sets; see `api.cpp` for who owns what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "threads.h"

namespace slipstream {

constexpr int kTile = 16;  // outputs of a product that are computed side by side

// Elements with a scale of their own, in tokens and in most blocks of weights; half as many; and
// the elements of a large block, whose parts have factors of its scale.
constexpr int kGroup = 32, kPart = 16, kSuper = 256;

// Element types of weights. Tokens are rounded to bfloat16 for a product with kBFloat16, and left
// as they are for kFloat32, kFloat16 and kNarrowFloat32, whose float32 weights bfloat16 holds
// exactly. The others are of GGUF files, in blocks of small integers with scales; activations are
// quantized likewise.
enum class Kind : int32_t {
  kBFloat16,
  kFloat32,
  kNarrowFloat32,
  kFloat16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
constexpr Kind kFirstQuantized = Kind::kQ4_0, kLastKind = Kind::kMXFP4;
inline bool is_quantized(Kind kind) { return kind >= kFirstQuantized; }

// Weights [outputs, inputs] in tiles of 16 outputs: within a tile two inputs after the other, for
// all outputs. In bfloat16 an output's two weights are neighbours, the second input's before the
// first's, otherwise the outputs are. Of blocks a tile has the codes, four inputs of each output
// after the other, and then the scales; Q4_0 is kept as Q4_1, and Q5_0 as Q8_0.
struct Matrix {
  Kind kind = Kind::kFloat32;
  bool is_exact = true;  // false where weights were too small for products in bfloat16
  int outputs = 0, inputs = 0;
  size_t tile_bytes = 0;
  uint8_t* data = nullptr;  // in the model's arena
  std::vector<float> bias;  // empty, or one for each output of the tiles

  int tiles() const { return (outputs + kTile - 1) / kTile; }
};

// What is added to the residual stream: an attention, whose first matrices give queries, and keys
// and values where they are its own, or an MLP, whose first give gates and what they are for. Each
// may be of another kind. The norms before it and of what it adds are [hidden], or empty where
// there is none.
struct Block {
  std::vector<float> norm, norm_after;
  std::vector<Matrix> into;
  Matrix out;
  std::vector<float> query_norm, key_norm;  // [head_dim], [heads * head_dim] or empty
};

// The self-attention, cross-attentions over another model's keys, the MLP. The first sees the last
// `window` positions, all where it is 0; heads are turned by the rotary embedding of that number,
// or by none.
struct Layer {
  std::vector<Block> blocks;
  int64_t window = 0;
  int rotary = 0;
};

// cos and sin [positions, half] of the first 2 * half elements of heads.
struct Rotary {
  int half = 0;
  std::vector<float> cos, sin;
};

struct Shape {
  int32_t layers, hidden, heads, key_heads, head_dim, mlp;
  int32_t num_cross;          // cross-attentions of a layer, over another model's keys
  int32_t keys_are_bfloat16;  // element type of all keys; else float32
  float norm_epsilon, attention_scale;
  float embedding_scale = 1.0f, residual_scale = 1.0f;  // the latter of what blocks add
  int32_t is_gelu = 0;  // MLPs are gated by GELU, in its form with tanh, else by SiLU
  // The one layer's attention reads two norms side by side, of the embedding and of a feature, and
  // the residual stream begins with the feature, or with its norm; what the next token reads is the
  // stream's end, or the norm of that.
  int32_t has_features = 0, norms_residual = 0, norms_output = 0;

  int inputs() const { return has_features ? 2 * hidden : hidden; }  // of the first attention
};

// Tokens [rows, inputs] as products take them. In 8 bits: codes, and for every 32 of them the
// scale, the scaled sum of all, and -128 times the sum of the first 16 codes, of the others and of
// all. Bf16Tokens to bfloat16: words with a number each or, where an instruction takes two, with a
// pair.
struct QuantizedActivations {
  int inputs = 0;
  Lines<int8_t> codes;
  Lines<float> scales, sums;
  Lines<int32_t> offsets;
  Lines<uint32_t> words;
  void resize(int64_t rows, int inputs);
};

// What an attention needs while it runs.
struct Scratch {
  Lines<float> scores, sums, totals;
};

// Tokens behind a norm, as they are and as products take them.
struct NormedTokens {
  Lines<float> values;
  QuantizedActivations quantized;
};

struct Buffers {
  QuantizedActivations attended_quantized, gated_quantized, pair_quantized;
  Lines<float> x, qkv, attended, wide, gated, pairs;
  std::vector<NormedTokens> normed;  // the first of all threads; or a token, of each its own
  Lines<float> hidden, logits, ranked, features;  // of chains; rows that are ranked
  std::vector<Lines<float>> blocks;  // by thread
  std::vector<Scratch> scratch;      // by thread, or by key head where threads share it
};

struct Model {
  Shape shape;
  Arena weights;
  std::vector<Layer> layers;
  Matrix head;
  std::vector<float> norm, feature_norm;
  std::vector<Rotary> rotaries;
  Kind embedding_kind = Kind::kFloat32;
  const uint8_t* embedding = nullptr;  // null: its rows are the head's
  int64_t vocabulary = 0;              // rows of the embedding
  std::shared_ptr<Team> team;
  Buffers buffers;
};

// Keys and values of another model, [key_heads, positions, head_dim] each: `stride` elements from
// one head to the next.
struct CrossKv {
  const void* keys;
  const void* values;
  int64_t stride;
  int64_t positions;
};

// The tokens of one forward; of the last layer only the first `kept` are computed, of the others
// there are keys and values. Token i sees the cache slots `block_tables[i][0 .. num_in_table[i])`,
// a table of `block_table_sizes[i]` slots, and then those of `ancestors`, which has `num_ancestors`
// of them: `ancestors[first_ancestor[i] .. first_ancestor[i + 1])`, its own the last of them, in
// the order of positions; and the first `num_read[i]` positions of `cross[i * shape.num_cross ..]`,
// of one for each such attention of a layer. `features` [count, hidden] are what a model that has
// them reads besides, `outputs` [kept, hidden] what the next tokens read; of chains, a row for each
// position that they may have.
struct Batch {
  int64_t count, kept;
  const int64_t* tokens;
  const int64_t* positions;
  const int64_t* slots;
  const int64_t* const* block_tables;
  const int64_t* num_in_table;
  const int64_t* ancestors;
  const int64_t* first_ancestor;
  const int64_t* num_read;
  const CrossKv* cross;
  const int64_t* block_table_sizes;
  int64_t num_ancestors;
  const float* features = nullptr;
  int64_t num_features = 0;
  float* outputs = nullptr;
  int64_t num_outputs = 0;
};

// The cache: a buffer [2 * key_heads, slots, head_dim] for each of `count` layers, keys before
// values, of `layer_bytes` each. `states`, unless it is null, has for each layer a buffer [2, slots,
// hidden / 2], of `state_bytes`, for the hidden states that the layer takes in, or null; behind
// them one for what the last layer gives.
struct Cache {
  void* const* layers;
  int64_t slots, count, layer_bytes;
  void* const* states = nullptr;
  int64_t state_bytes = 0;
};

// The keys of one position's noise.
struct Noise {
  uint32_t first, second;
};

// Numbers that a row's candidates are ranked by: its logits times `factor`, plus the noise of these
// keys where it `is_sampled`.
struct Ranking {
  float factor;
  int32_t is_sampled;
  Noise noise;
};

// Candidates of rows of logits, `count` of each at most. A row has `kRowStats` numbers, then the
// tokens of the best, -1 where there are no more, then their probabilities. `ids` are the tokens of
// the logits, ascending; null where they are their places. `num_noisy` tokens with the largest noise
// are scored besides, by the embedding; 0 where that is not the head.
enum RowStat { kEntropy, kLogBest, kLogSecond, kScore, kRowStats };
struct RankedRows {
  const int64_t* ids;
  int64_t count;
  float* rows;
  int64_t num_noisy;

  float* row(int64_t at) const { return rows + at * (kRowStats + 2 * count); }
};

// A decision model: a layer of `width` units over states [hidden] and statistics, whose last two
// rows are a logistic model of its own; see `models/decision.py`.
struct DecisionModel {
  int64_t width;
  const float* hidden;  // [width + 2, hidden]
  const float* bias;    // [width + 2]
  const float* stats;   // [width + 2, 4]
  const float* out;     // [2, width]
};

// Policies that end a chain, as in `core/policy/stop.py`.
enum class Policy : int64_t { kFixed, kSvip, kDecision, kCost };

// The chain of one session: its limits, then what was found. Where it `is_sampled`, its first token
// has the noise of `seed` at `position`; `lag` is the distance of that token to the newest target
// key. `others` are tokens outside of the head that are scored besides.
struct ChainState {
  int64_t limit, max_depth, lag, is_scored;
  Policy policy;
  double threshold, fallback, min_path_prob;
  const double* points;  // acceptance by confidence
  int64_t num_points;
  const int64_t* ends;  // tokens that nothing follows
  int64_t num_ends;
  const int64_t* others;
  int64_t num_others;
  int64_t is_sampled, position;
  uint64_t seed;
  float factor;
  double path_prob;
  int64_t length;
};

// Loops that find out how fast a processor is at most; see `peaks.h`. What they compute goes to
// `sink` [4].
struct Peaks {
  double (*multiply_floats)(int64_t steps, float* sink);
  double (*multiply_codes)(int64_t steps, float* sink);
  void (*read_bytes)(const uint8_t* p, size_t count, float* sink);
};

// What an instruction set provides.
struct Kernels {
  const char* name;
  // Final hidden states [kept, hidden], after the last norm.
  void (*forward)(Model&, const Cache&, const Batch&, float* hidden);
  // y [rows, outputs] = x [rows, inputs] times a matrix.
  void (*multiply)(Team&, const Matrix&, const float* x, int64_t rows, float* y);
  // Tokens that a draw can give, the largest score, and how many there are: see `draws.h`.
  int64_t (*sampling_candidates)(const float* scores, int64_t count, float temperature, Noise,
                                 float* best, int32_t* tokens);
  // Whole chains of `batch.kept` sessions: see `chain.h`.
  void (*follow)(Model&, const Cache&, const Batch&, const DecisionModel*, ChainState*,
                 int64_t stride, const RankedRows&);
  Peaks peaks;
};

extern const Kernels kPortable;
#if defined(__x86_64__)
// Without a name where they are not compiled: see `INSTRUCTION_SETS` of `hatch_build.py`.
extern const Kernels kAvx2, kAvx512, kAvx512Vnni, kAvx2Vnni, kAvx512BFloat16;
#elif defined(__aarch64__)
extern const Kernels kNeonDot;
#endif

}  // namespace slipstream
