// The kernels of one instruction set, SLIPSTREAM_ISA, which is their namespace.
#pragma once

#include "chain.h"
#include "peaks.h"

namespace SLIPSTREAM_ISA {

constexpr slipstream::Kernels kernels(const char* name) {
  return {name, forward, multiply, sampling_candidates, follow, kPeaks};
}

}  // namespace SLIPSTREAM_ISA
