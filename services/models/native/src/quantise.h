// Floats rounded to the blocks that GGUF files hold weights in.
#pragma once

#include "model.h"

namespace slipstream {

// Whether weights can be rounded to blocks of a kind: to Q8_0 and Q4_1.
bool can_quantise(Kind kind);

// `count` floats, whole blocks of 32, as blocks of the kind. All machines make the same blocks.
void quantise(Kind kind, const float* values, int64_t count, uint8_t* blocks);

}  // namespace slipstream
