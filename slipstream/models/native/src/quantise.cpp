#include "quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "blocks.h"
#include "numbers.h"

namespace slipstream {
namespace {

// To the nearest whole number, ties to even, of what is less than 2 to the power of 22.
float rounded(float x) {
  constexpr float kShift = 0x1.8p23f;
  return (x + kShift) - kShift;
}

// The nearest number between two; what is no number becomes the least.
float within(float least, float x, float most) { return std::min(most, std::max(least, x)); }

bool has_all_numbers(const float* x) {
  return std::all_of(x, x + kGroup, [](float value) { return value == value; });
}

void quantise_q8_0(const float* x, uint8_t* block) {
  constexpr float kLargest = 127.0f;
  float most = 0.0f;
  for (int i = 0; i < kGroup; ++i) most = std::max(most, std::fabs(x[i]));
  const float scale = has_all_numbers(x) ? most / kLargest : NAN;
  const bool has_codes = scale > 0.0f && scale < INFINITY;
  const Float16 half = to_float16(scale);
  std::memcpy(block, &half, sizeof half);
  for (int i = 0; i < kGroup; ++i) {
    // A scale so small that it is inexact must not lead to larger codes.
    const float code = has_codes ? within(-kLargest, x[i] / scale, kLargest) : 0.0f;
    block[sizeof half + i] = static_cast<uint8_t>(static_cast<int8_t>(rounded(code)));
  }
}

}  // namespace

void quantise(const float* values, int64_t count, uint8_t* blocks) {
  const size_t bytes = block_size(Kind::kQ8_0).bytes;
  for (int64_t first = 0; first < count; first += kGroup, blocks += bytes) {
    quantise_q8_0(values + first, blocks);
  }
}

}  // namespace slipstream
