// What the C interface hands out for a model, and the results of its functions.
#pragma once

#include <exception>
#include <mutex>

#include "model.h"

#define SLIPSTREAM_API extern "C" __attribute__((visibility("default")))

namespace slipstream {

struct Handle {
  Model model;
  const Kernels* kernels;
  std::mutex forward;  // a model has buffers for one forward
};

constexpr int32_t kNoMemory = -1, kMisfit = -2;

// Calls `work`, which returns 0 or another result.
template <class Work>
int32_t guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception&) {
    return kNoMemory;
  }
}

}  // namespace slipstream
