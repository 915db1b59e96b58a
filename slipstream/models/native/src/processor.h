#pragma once

#include "model.h"

namespace slipstream {

// The kernels of this processor, or those of a name; null where it has not got them. "" stands for
// the fastest.
const Kernels* kernels(const char* name);

}  // namespace slipstream
