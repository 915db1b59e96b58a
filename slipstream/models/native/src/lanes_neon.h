// The lanes of NEON: four registers.
#pragma once

#include <arm_neon.h>

namespace SLIPSTREAM_ISA {

// Tokens times tiles of 16 outputs whose sums fit into registers.
constexpr int kMaxRows = 6, kMaxTiles = 1, kMaxQuantizedRows = 4, kGoodQuantizedRows = 4,
              kMaxQuantizedTiles = 1, kMaxRowGroups = 1;
constexpr int kMaxTiledRows = kMaxRows;  // tokens that go with kMaxTiles at once

struct Lanes {
  float32x4_t v[4];
};
// The registers one by one, from `f` of 0 to 3.
template <class F>
inline Lanes each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline Lanes all(float x) {
  return each([=](int) { return vdupq_n_f32(x); });
}
inline Lanes zero() { return all(0.0f); }
inline Lanes load(const float* p) {
  return each([=](int i) { return vld1q_f32(p + 4 * i); });
}
inline Lanes load(const BFloat16* p) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
  return each([=](int i) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bits + 4 * i), 16));
  });
}
inline Lanes load(const Float16* p) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
  return each([=](int i) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bits + 4 * i)));
  });
}
inline Lanes load(const int8_t* p) {
  const int8x16_t levels = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(levels)), high = vmovl_s8(vget_high_s8(levels));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
           vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
// Pairs of bfloat16: the first, or the second, of each.
inline Lanes load_first(const BFloat16* p) {
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(p);
  return each([=](int i) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(pairs + 4 * i), 16));
  });
}
inline Lanes load_second(const BFloat16* p) {
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(p);
  return each([=](int i) {
    return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(pairs + 4 * i), vdupq_n_u32(0xffff0000)));
  });
}
inline void store(float* p, Lanes a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Lanes add(Lanes a, Lanes b) {
  return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Lanes sub(Lanes a, Lanes b) {
  return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Lanes mul(Lanes a, Lanes b) {
  return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Lanes div(Lanes a, Lanes b) {
  return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
// As x86-64 has it: the second operand where either is not a number, or where they are equal.
inline Lanes max(Lanes a, Lanes b) {
  return each([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Lanes min(Lanes a, Lanes b) {
  return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Lanes round(Lanes a) {
  return each([&](int i) { return vrndnq_f32(a.v[i]); });
}
// 2 to the power of whole numbers from -126 to 127.
inline Lanes power_of_two(Lanes n) {
  return each([&](int i) {
    const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  });
}
// Whole numbers from -128 to 127 as bytes.
inline void store(int8_t* p, Lanes a) {
  for (int i = 0; i < 2; ++i) {
    const int16x4_t low = vmovn_s32(vcvtq_s32_f32(a.v[2 * i]));
    const int16x4_t high = vmovn_s32(vcvtq_s32_f32(a.v[2 * i + 1]));
    vst1_s8(p + 8 * i, vmovn_s16(vcombine_s16(low, high)));
  }
}
inline void store_quarters(float* q, Lanes a) {
  vst1q_f32(q, vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3])));
}
inline float largest(Lanes a) {
  const float32x4_t low = vmaxq_f32(a.v[0], a.v[1]), high = vmaxq_f32(a.v[2], a.v[3]);
  return vmaxvq_f32(vmaxq_f32(low, high));
}

}  // namespace SLIPSTREAM_ISA
