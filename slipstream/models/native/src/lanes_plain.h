// The lanes of plain C++: an array. Everything is one IEEE operation for each lane, of which only
// the fused one has to be named.
#pragma once

#include <cmath>

namespace SLIPSTREAM_ISA {

constexpr int kMaxRows = 4, kMaxTiles = 1, kMaxQuantizedRows = 4, kGoodQuantizedRows = 4,
              kMaxQuantizedTiles = 1, kMaxRowGroups = 1;
constexpr int kMaxTiledRows = kMaxRows;  // tokens that go with kMaxTiles at once

struct Lanes {
  float v[kLanes];
};
template <class F>
inline Lanes each(F f) {
  Lanes out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}
inline Lanes zero() { return each([](int) { return 0.0f; }); }
inline Lanes all(float x) { return each([=](int) { return x; }); }
inline Lanes load(const float* p) { return each([=](int i) { return p[i]; }); }
inline Lanes load(const BFloat16* p) { return each([=](int i) { return to_float(p[i]); }); }
inline Lanes load(const int8_t* p) { return each([=](int i) { return float(p[i]); }); }
inline Lanes load(const Float16* p) { return each([=](int i) { return to_float(p[i]); }); }
inline Lanes load_first(const BFloat16* p) {
  return each([=](int i) { return to_float(p[2 * i]); });
}
inline Lanes load_second(const BFloat16* p) {
  return each([=](int i) { return to_float(p[2 * i + 1]); });
}
inline void store(float* p, Lanes a) { std::memcpy(p, a.v, sizeof a.v); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline Lanes add(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Lanes sub(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Lanes mul(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Lanes div(Lanes a, Lanes b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
// As the instructions have it: the second operand where either is not a number.
inline Lanes max(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes min(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes round(Lanes a) {
  return each([&](int i) { return std::nearbyint(a.v[i]); });
}
inline void store(int8_t* p, Lanes a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
inline Lanes power_of_two(Lanes n) {
  return each([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); });
}
inline void store_quarters(float* q, Lanes a) {
  for (int i = 0; i < 4; ++i) q[i] = (a.v[i] + a.v[i + 8]) + (a.v[i + 4] + a.v[i + 12]);
}
inline float largest(Lanes a) {
  float out = a.v[0];
  for (float value : a.v) out = value > out ? value : out;
  return out;
}

}  // namespace SLIPSTREAM_ISA
