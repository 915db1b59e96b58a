// What the C interface refuses: sizes that do not fit each other, and places that are not there.
#pragma once

#include "model.h"
#include "packing.h"

namespace slipstream {

// A block's norms and matrices, by their places.
enum Place { kInto = 0, kOut = 1 };
enum NormPlace { kBefore = 0, kQuery = 1, kKey = 2, kAfter = 3 };

// Whether a model of these sizes can be computed: all widths are numbers of 32 bits.
bool is_possible(const Shape& shape);

bool has_block(const Model& model, int32_t layer, int32_t block);

// Whether a norm of a place has so many elements.
bool fits_norm(const Shape& shape, int32_t place, int64_t count);

// Whether some matrices have the inputs, and all in all the outputs, that a block's place asks for.
bool fits_place(const Shape& shape, int32_t block, int32_t place, const Weights* weights,
                int32_t count);

// Whether all weights of a model have been set, so that a forward finds them.
bool is_complete(const Model& model);

// Whether tokens, their positions and slots, and all that they see, are in the model, the cache and
// the arrays of a batch.
bool fits_batch(const Model& model, const Cache& cache, const Batch& batch);

// Whether a batch has room for so many rows of features that the next tokens read.
bool fits_outputs(const Shape& shape, const Batch& batch, int64_t rows);

// Whether chains, of up to `stride` positions, have room behind the first tokens of such a batch.
bool fits_chains(const Model& model, const Cache& cache, const Batch& batch,
                 const ChainState* chains, int64_t stride, const RankedRows& out);

}  // namespace slipstream
