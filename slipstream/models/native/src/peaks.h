// Loops that multiply, or read, and do nothing else: what the instruction set can do at most.
#pragma once

#include "products.h"

namespace SLIPSTREAM_ISA {

// Sums that hide how long an operation takes, as many as registers hold.
constexpr int kPeakSums = kMaxRows, kPeakCodeSums = kMaxQuantizedRows;

// Stores what all of them are needed for: compilers leave out what nothing depends on.
template <int COUNT>
inline void store_all(const Lanes (&sums)[COUNT], float* sink) {
  Lanes total = sums[0];
  for (int i = 1; i < COUNT; ++i) total = add(total, sums[i]);
  store_quarters(sink, total);
}

// Multiply-adds in float32; returns how many there were.
inline double multiply_floats(int64_t steps, float* sink) {
  float factor = 1e-3f, start[kLanes] = {};  // no lane is known to have the same sum as another
  asm volatile("" : "+m"(factor), "+m"(start));
  Lanes sums[kPeakSums];
  unrolled<kPeakSums>([&](auto i) { sums[i] = mul(load(start), all(factor * i)); });
#if defined(SLIPSTREAM_HAS_PAIRS)
  const Pairs pair = all_pairs(0x3a833a83);
  for (int64_t step = 0; step < steps; ++step) {
    unrolled<kPeakSums>([&](auto i) { sums[i] = add_products(sums[i], pair, pair); });
  }
  constexpr int kEach = 2 * kLanes;
#else
  const Lanes value = all(factor);
  for (int64_t step = 0; step < steps; ++step) {
    unrolled<kPeakSums>([&](auto i) { sums[i] = fma(value, value, sums[i]); });
  }
  constexpr int kEach = kLanes;
#endif
  store_all(sums, sink);
  return static_cast<double>(steps) * kPeakSums * kEach;
}

// The same of integers: 4-bit codes with 8-bit ones, four of each of which are read each time.
inline double multiply_codes(int64_t steps, float* sink) {
  uint8_t bytes[kQuadBytes] = {};
  int8_t four[kQuad] = {};
  asm volatile("" : "+m"(bytes), "+m"(four));
  const Codes codes = load_codes(bytes);
  NibbleSum sums[kPeakCodeSums];
  for (NibbleSum& each : sums) each.begin(0);
  for (int64_t step = 0; step < steps; ++step) {
    unrolled<kPeakCodeSums>([&](auto i) {
      asm volatile("" : "+m"(four));
      sums[i].add(codes, four);
    });
  }
  Lanes values[kPeakCodeSums];
  unrolled<kPeakCodeSums>([&](auto i) { values[i] = sums[i].value(); });
  store_all(values, sink);
  return static_cast<double>(steps) * kPeakCodeSums * kQuadBytes;
}

// Reads so many bytes, whole vectors.
inline void read_bytes(const uint8_t* p, size_t count, float* sink) {
  const float* numbers = reinterpret_cast<const float*>(p);
  Lanes sums[4] = {zero(), zero(), zero(), zero()};
  const size_t size = count / sizeof(float);
  for (size_t i = 0; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int part = 0; part < 4; ++part) {
      sums[part] = max(sums[part], load(numbers + i + part * kLanes));
    }
  }
  store_all(sums, sink);
}

constexpr slipstream::Peaks kPeaks = {multiply_floats, multiply_codes, read_bytes};

}  // namespace SLIPSTREAM_ISA
