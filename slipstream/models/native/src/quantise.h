// Floats rounded to the blocks that GGUF files hold weights in.
#pragma once

#include "model.h"

namespace slipstream {

// `count` floats, whole blocks of 32, as blocks of Q8_0. All machines make the same blocks.
void quantise(const float* values, int64_t count, uint8_t* blocks);

}  // namespace slipstream
