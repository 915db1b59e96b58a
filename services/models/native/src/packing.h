#pragma once

#include "model.h"

namespace slipstream {

// `values` [outputs, inputs] in the element type of the kind; `bias` [outputs], or null.
Matrix packed(Kind kind, int outputs, int inputs, const void* values, const float* bias);

}  // namespace slipstream
