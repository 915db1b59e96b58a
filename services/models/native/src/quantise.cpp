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

// The sum of a function of 0 to 31, by one tree, which compilers can vectorise.
template <class F>
float sum(F term) {
  float parts[kPart];
  for (int i = 0; i < kPart; ++i) parts[i] = term(i) + term(i + kPart);
  for (int half = kPart / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
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

// A way to write 32 floats as scale * code + minimum: scale and minimum as a block holds them,
// codes from 0 to 15, and the sum of squared differences.
struct Fit {
  Float16 scale, minimum;
  float codes[kGroup];
  float error;
};

// The nearest codes for a scale and a minimum. A scale that is zero gives codes of zero.
Fit fit(const float* x, float scale, float minimum) {
  Fit out{to_float16(scale), to_float16(minimum), {}, 0.0f};
  const float step = to_float(out.scale), least = to_float(out.minimum);
  const float factor = step > 0.0f ? 1.0f / step : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    out.codes[i] = rounded(within(0.0f, (x[i] - least) * factor, 15.0f));
  }
  out.error = sum([&](int i) {
    const float difference = step * out.codes[i] + least - x[i];
    return difference * difference;
  });
  return out;
}

// The scale and the minimum with the least squared error for the codes of a fit, and the nearest
// codes for them.
Fit refined(const float* x, const Fit& now) {
  const double codes = sum([&](int i) { return now.codes[i]; });
  const double squares = sum([&](int i) { return now.codes[i] * now.codes[i]; });
  const double values = sum([&](int i) { return x[i]; });
  const double products = sum([&](int i) { return x[i] * now.codes[i]; });
  const double determinant = kGroup * squares - codes * codes;
  if (determinant <= 0.0) return now;
  const double scale = (kGroup * products - codes * values) / determinant;
  const double minimum = (squares * values - codes * products) / determinant;
  return fit(x, static_cast<float>(scale), static_cast<float>(minimum));
}

// Codes that span all values waste most steps on outliers, and so narrower spans and wider ones are
// tried, too, each refined until that brings no more.
Fit best_fit(const float* x) {
  constexpr int kSpans = 6, kPlain = 2, kRefinements = 3;
  const auto [low, high] = std::minmax_element(x, x + kGroup);
  const float span = *high - *low;
  Fit best = fit(x, span / 15.0f, *low);
  for (int i = 0; i < kSpans && span > 0.0f; ++i) {
    const float excess = (i - kPlain) * 0.025f * span;
    Fit now = fit(x, (span - 2.0f * excess) / 15.0f, *low + excess);
    for (int round = 0; round < kRefinements; ++round) {
      const Fit next = refined(x, now);
      if (!(next.error < now.error)) break;
      now = next;
    }
    if (now.error < best.error) best = now;
  }
  return best;
}

void quantise_q4_1(const float* x, uint8_t* block) {
  Fit found = best_fit(x);
  if (!has_all_numbers(x)) found.minimum = to_float16(NAN);
  std::memcpy(block, &found.scale, sizeof found.scale);
  std::memcpy(block + 2, &found.minimum, sizeof found.minimum);
  for (int i = 0; i < kPart; ++i) {
    const int low = static_cast<int>(found.codes[i]);
    const int high = static_cast<int>(found.codes[i + kPart]);
    block[4 + i] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace

bool can_quantise(Kind kind) { return kind == Kind::kQ8_0 || kind == Kind::kQ4_1; }

void quantise(Kind kind, const float* values, int64_t count, uint8_t* blocks) {
  const size_t bytes = block_size(kind).bytes;
  for (int64_t first = 0; first < count; first += kGroup, blocks += bytes) {
    if (kind == Kind::kQ8_0) {
      quantise_q8_0(values + first, blocks);
    } else {
      quantise_q4_1(values + first, blocks);
    }
  }
}

}  // namespace slipstream
