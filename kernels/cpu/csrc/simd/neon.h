// NEON as every 64-bit ARM has it, with fused multiply-add. A core has two to four pipes of 128-bit
// float operations; a score's tile is 4 queries x 2 vectors, eight sums in flight, and with its
// operands takes a little more than half of the 32 registers. The square root is the exact one:
// vrsqrteq_f32 has 8 bits, so that two Newton steps of two instructions each would be needed.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace kgfast {
namespace {

struct Simd {
  using V = float32x4_t;
  static constexpr int W = 4;
  static constexpr bool fuses = true;            // fma rounds once
  static constexpr double sqrt_error = 0x1p-24;  // correctly rounded

  static V zero() { return vdupq_n_f32(0.0f); }
  static V set1(float x) { return vdupq_n_f32(x); }
  static V load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, V x) { vst1q_f32(p, x); }
  static V add(V a, V b) { return vaddq_f32(a, b); }
  static V sub(V a, V b) { return vsubq_f32(a, b); }
  static V mul(V a, V b) { return vmulq_f32(a, b); }
  static V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
  static V abs(V a) { return vabsq_f32(a); }
  // Returns b if one operand is NaN, as on x86; vmaxq_f32 would keep the NaN of a.
  static V max(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static V min(V a, V b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static V sqrt(V a) { return vsqrtq_f32(a); }
  static V add_sqrt(V acc, V m) { return add(acc, sqrt(m)); }
  static V add_two_sqrt(V acc, V m) {
    const V root = sqrt(m);
    return add(acc, add(root, root));
  }
  static V two_over_sqrt(V g, V m) { return div(add(g, g), sqrt(m)); }
  static V div(V a, V b) { return vdivq_f32(a, b); }
  static V where_negative(V x, V a, V b) {  // a where x < 0, else b
    return vbslq_f32(vcltzq_f32(x), a, b);
  }
  static V power_of_two(V n) {  // 2^n for whole n in -126 .. 127, 0 for -127
    const int32x4_t biased = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  }
  static V minus_product(V a, V b, V c) { return vfmsq_f32(c, a, b); }  // c - a b
  // Returns g with the sign of x, 0 where x is 0.
  static V signed_by(V g, V x) {
    const uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(1u << 31));
    const uint32x4_t flipped = veorq_u32(vreinterpretq_u32_f32(g), sign);
    return vreinterpretq_f32_u32(vbicq_u32(flipped, vceqzq_f32(x)));
  }
  static V product_minus(V a, V b, V c) { return vfmaq_f32(vnegq_f32(c), a, b); }  // a b - c
  // Adds n right angles to the angle of a cosine and a sine, n in the lowest bits of `turns`.
  static void turn_right_angles(V turns, V* cosine, V* sine) {
    const uint32x4_t n = vreinterpretq_u32_f32(turns), one = vdupq_n_u32(1);
    const uint32x4_t odd = vtstq_u32(n, one), sign = vdupq_n_u32(1u << 31);
    const V c = vbslq_f32(odd, *sine, *cosine), s = vbslq_f32(odd, *cosine, *sine);
    const uint32x4_t second = vshlq_n_u32(n, 30);  // bit 1 of n, and of n + 1, as the sign
    const uint32x4_t middle = vshlq_n_u32(vaddq_u32(n, one), 30);
    *cosine = flip(c, vandq_u32(middle, sign));
    *sine = flip(s, vandq_u32(second, sign));
  }
  static uint32_t less(V a, V b) {
    const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vcltq_f32(a, b), vld1q_u32(bits)));
  }

  // Sets dst[j * dst_stride + i] = rows[i][offset + j] for i, j < 4.
  static void transpose(const float* const* rows, int64_t offset, float* dst, int64_t dst_stride) {
    const V a = load(rows[0] + offset), b = load(rows[1] + offset);
    const V c = load(rows[2] + offset), d = load(rows[3] + offset);
    const V even_ab = vtrn1q_f32(a, b), odd_ab = vtrn2q_f32(a, b);
    const V even_cd = vtrn1q_f32(c, d), odd_cd = vtrn2q_f32(c, d);
    store(dst, low_halves(even_ab, even_cd));
    store(dst + dst_stride, low_halves(odd_ab, odd_cd));
    store(dst + 2 * dst_stride, high_halves(even_ab, even_cd));
    store(dst + 3 * dst_stride, high_halves(odd_ab, odd_cd));
  }

 private:
  static V flip(V x, uint32x4_t signs) {
    return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), signs));
  }
  static V low_halves(V a, V b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
  static V high_halves(V a, V b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }
};

}  // namespace
}  // namespace kgfast
