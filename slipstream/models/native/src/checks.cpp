#include "checks.h"

#include <algorithm>
#include <iterator>

namespace slipstream {
namespace {

constexpr int64_t kMostExact = 1 << 24;  // of whole numbers that a float32 has each of
constexpr int64_t kLargest = 1 << 30;  // of a width, and of the numbers that make one

bool is_within(int64_t value, int64_t count) { return value >= 0 && value < count; }

// Whether all of some slots are in a cache.
bool are_slots(const int64_t* slots, int64_t count, const Cache& cache) {
  return std::all_of(slots, slots + count, [&](int64_t at) { return is_within(at, cache.slots); });
}

// Whether all arrays are there that a forward reads.
bool has_arrays(const Shape& shape, const Batch& batch) {
  const void* const arrays[] = {batch.tokens,        batch.positions,    batch.slots,
                                batch.block_tables,  batch.num_in_table, batch.block_table_sizes,
                                batch.first_ancestor};
  const auto is_there = [](const void* array) { return array != nullptr; };
  return std::all_of(std::begin(arrays), std::end(arrays), is_there) &&
         (batch.num_ancestors == 0 || batch.ancestors != nullptr) &&
         (shape.num_cross == 0 || batch.num_read != nullptr);
}

// Whether each row of `first_ancestor` is a part of the `num_ancestors` slots of all ancestors.
bool are_parts(const Batch& batch) {
  int64_t last = 0;
  for (int64_t row = 0; row <= batch.count; ++row) {
    if (batch.first_ancestor[row] < last || batch.first_ancestor[row] > batch.num_ancestors)
      return false;
    last = batch.first_ancestor[row];
  }
  return true;
}

// Whether the slots that a token sees in its table are there. Of the same table, which tokens
// beside each other share, `seen` positions have been looked at.
bool fits_table(const Cache& cache, const Batch& batch, int64_t row, int64_t& seen) {
  const int64_t count = batch.num_in_table[row];
  if (count < 0 || count > batch.block_table_sizes[row]) return false;
  if (row == 0 || batch.block_tables[row] != batch.block_tables[row - 1]) seen = 0;
  if (count <= seen) return true;
  const int64_t first = seen;
  seen = count;
  return batch.block_tables[row] != nullptr &&
         are_slots(batch.block_tables[row] + first, count - first, cache);
}

// Whether the first `count` positions of what a token reads are there.
bool fits_cross(const Shape& shape, const Batch& batch, int64_t row, int64_t count) {
  for (int64_t at = 0; at < shape.num_cross; ++at) {
    const CrossKv& other = batch.cross[row * shape.num_cross + at];
    if (count < 0 || count > other.positions) return false;
    if (count > 0 && (other.keys == nullptr || other.values == nullptr)) return false;
    // A head's positions follow each other, and heads do not reach into each other.
    const bool has_more = count > 0 && shape.key_heads > 1;
    if (has_more && other.stride / shape.head_dim < other.positions) return false;
  }
  return true;
}

// The positions that have factors in all rotary embeddings.
int64_t num_positions(const Model& model) {
  int64_t least = INT64_MAX;
  for (const Layer& layer : model.layers) {
    if (layer.rotary < 0) continue;
    const Rotary& own = model.rotaries[layer.rotary];
    least = std::min(least, static_cast<int64_t>(own.cos.size()) / own.half);
  }
  return least;
}

}  // namespace

bool is_possible(const Shape& shape) {
  const int64_t sizes[] = {shape.hidden, shape.heads, shape.key_heads, shape.head_dim, shape.mlp};
  for (int64_t size : sizes) {
    if (size < 1 || size > kLargest) return false;
  }
  const int64_t heads = int64_t{shape.heads} + int64_t{2} * shape.key_heads;
  const bool is_pair = shape.layers == 1 && shape.num_cross == 0 && shape.hidden <= kLargest / 2;
  if (shape.has_features && !is_pair) return false;
  return shape.layers >= 0 && shape.num_cross >= 0 && shape.heads % shape.key_heads == 0 &&
         heads <= kLargest / shape.head_dim && int64_t{2} * shape.mlp + 2 * kTile <= kLargest;
}

bool has_block(const Model& model, int32_t layer, int32_t block) {
  return is_within(layer, model.shape.layers) && is_within(block, 2 + model.shape.num_cross);
}

bool fits_norm(const Shape& shape, int32_t place, int64_t count) {
  if (place == kBefore || place == kAfter) return count == shape.hidden;
  if (place != kQuery && place != kKey) return false;
  const int64_t heads = place == kQuery ? shape.heads : shape.key_heads;
  return count == shape.head_dim || count == heads * shape.head_dim;
}

bool fits_place(const Shape& shape, int32_t block, int32_t place, const Weights* weights,
                int32_t count) {
  if (place != kInto && place != kOut) return false;
  const bool is_mlp = block == 1 + shape.num_cross;
  const int64_t queries = int64_t{shape.heads} * shape.head_dim;
  const int64_t keys = block == 0 ? int64_t{2} * shape.key_heads * shape.head_dim : 0;
  const int64_t first_inputs = block == 0 ? shape.inputs() : shape.hidden;
  const int64_t inputs = place == kInto ? first_inputs : is_mlp ? shape.mlp : queries;
  const int64_t first = is_mlp ? int64_t{2} * shape.mlp : queries + keys;
  const int64_t outputs = place == kInto ? first : shape.hidden;
  int64_t found = 0;
  for (int i = 0; i < count; ++i) {
    if (!is_whole(weights[i]) || weights[i].inputs != inputs) return false;
    found += weights[i].outputs;
  }
  if (place == kOut) return count == 1 && found == outputs;
  return found == outputs && (!is_mlp || (count == 2 && weights->outputs == shape.mlp));
}

bool is_complete(const Model& model) {
  if (model.norm.empty() || (model.embedding == nullptr && model.head.data == nullptr))
    return false;
  const bool has_norms =
      !model.feature_norm.empty() && !model.layers.empty() && !model.layers[0].blocks[0].norm.empty();
  if (model.shape.has_features && !has_norms) return false;
  for (const Layer& layer : model.layers) {
    if (layer.rotary >= static_cast<int64_t>(model.rotaries.size())) return false;
    if (layer.rotary >= 0 && model.rotaries[layer.rotary].half < 1) return false;
    for (const Block& block : layer.blocks) {
      if (block.into.empty() || block.out.data == nullptr) return false;
    }
  }
  return true;
}

bool fits_batch(const Model& model, const Cache& cache, const Batch& batch) {
  const Shape& shape = model.shape;
  const int64_t element_bytes = shape.keys_are_bfloat16 ? 2 : 4;
  const int64_t slot_bytes = element_bytes * 2 * shape.key_heads * shape.head_dim;
  if (batch.count < 1 || !is_within(batch.kept, batch.count + 1)) return false;
  if (!has_arrays(shape, batch)) return false;
  const int64_t features = shape.has_features ? batch.count * shape.hidden : 0;
  if (batch.num_features != features || (features > 0 && batch.features == nullptr)) return false;
  if (cache.count != shape.layers || cache.slots < 0) return false;
  if (cache.layer_bytes != cache.slots * slot_bytes) return false;
  if (cache.states != nullptr) {
    if (shape.hidden % 2 || cache.state_bytes != cache.slots * shape.hidden * element_bytes)
      return false;
    // The last layer computes no more rows than are kept.
    if (cache.states[shape.layers] != nullptr && batch.kept != batch.count) return false;
  }
  if (!are_parts(batch) || !are_slots(batch.ancestors, batch.num_ancestors, cache)) return false;
  if (!are_slots(batch.slots, batch.count, cache)) return false;
  const int64_t positions = num_positions(model);
  int64_t seen = 0;
  for (int64_t row = 0; row < batch.count; ++row) {
    if (!is_within(batch.tokens[row], model.vocabulary)) return false;
    if (!is_within(batch.positions[row], positions)) return false;
    if (!fits_table(cache, batch, row, seen)) return false;
    if (batch.cross != nullptr && !fits_cross(shape, batch, row, batch.num_read[row])) return false;
  }
  return true;
}

bool fits_outputs(const Shape& shape, const Batch& batch, int64_t rows) {
  if (!shape.has_features) return batch.num_outputs == 0;
  return batch.num_outputs == rows * shape.hidden && (rows == 0 || batch.outputs != nullptr);
}

bool fits_chains(const Model& model, const Cache& cache, const Batch& batch,
                 const ChainState* chains, int64_t stride, const RankedRows& out) {
  const Shape& shape = model.shape;
  const int64_t positions = num_positions(model);
  if (model.head.data == nullptr || out.count < 1 || out.rows == nullptr) return false;
  if (model.vocabulary > kMostExact) return false;
  for (int64_t column = 0; out.ids != nullptr && column < model.head.outputs; ++column) {
    if (!is_within(out.ids[column], model.vocabulary)) return false;
  }
  if (out.ids == nullptr && model.head.outputs > model.vocabulary) return false;
  const bool has_rows = out.ids != nullptr && model.embedding != nullptr;
  if (out.num_noisy < 0 || (out.num_noisy > 0 && !has_rows)) return false;
  for (int64_t row = 0; row < batch.kept; ++row) {
    const ChainState& chain = chains[row];
    const int64_t last = chain.limit - 1, seen = batch.num_in_table[row];
    if (last < 0 || chain.limit > stride || chain.points == nullptr || chain.num_points < 2)
      return false;
    if (chain.num_ends < 0 || (chain.num_ends > 0 && chain.ends == nullptr)) return false;
    if (chain.num_others < 0 || (chain.num_others > 0 && (!has_rows || chain.others == nullptr)))
      return false;
    for (int64_t other = 0; other < chain.num_others; ++other) {
      if (!is_within(chain.others[other], model.vocabulary)) return false;
    }
    if (batch.first_ancestor[row] != batch.first_ancestor[row + 1]) return false;
    if (last >= positions - batch.positions[row]) return false;
    if (last > batch.block_table_sizes[row] - seen) return false;
    if (!are_slots(batch.block_tables[row] + seen, last, cache)) return false;
    if (batch.cross == nullptr || shape.num_cross == 0) continue;
    if (!fits_cross(shape, batch, row, batch.cross[row * shape.num_cross].positions)) return false;
  }
  return true;
}

}  // namespace slipstream
