// AVX-512 (F, BW, DQ, VL). Ports 0 and 5 take the 512-bit float operations: per vector of 16
// complex elements sub, sub, fma, fma, rsqrt14, fma.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace kgfast {
namespace {

struct Simd {
  using V = __m512;
  static constexpr int W = 16;
  static constexpr bool fuses = true;  // fma rounds once
  static constexpr double sqrt_error = 0x1p-14;  // vrsqrt14ps, Intel SDM and AMD APM

  static V zero() { return _mm512_setzero_ps(); }
  static V set1(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V abs(V a) { return _mm512_abs_ps(a); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V sqrt(V a) { return _mm512_sqrt_ps(a); }
  // Returns acc + sqrt(m) for m > 0; not finite where m is not.
  static V add_sqrt(V acc, V m) { return _mm512_fmadd_ps(m, _mm512_rsqrt14_ps(m), acc); }
  // Adds 2 sqrt(m) in full float32 precision, m > 0: one Newton step, r (3 - m r^2) / 2.
  static V add_two_sqrt(V acc, V m) {
    const V r = _mm512_rsqrt14_ps(m), root = mul(m, r);
    return fma(root, _mm512_fnmadd_ps(root, r, set1(3.0f)), acc);
  }
  // Returns 2 g / sqrt(m) in full float32 precision, m > 0, by one Newton step.
  static V two_over_sqrt(V g, V m) {
    const V r = _mm512_rsqrt14_ps(m);
    return mul(mul(g, r), _mm512_fnmadd_ps(mul(m, r), r, set1(3.0f)));
  }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V where_negative(V x, V a, V b) {  // a where x < 0, else b
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), b, a);
  }
  static V power_of_two(V n) {  // 2^n for whole n in -126 .. 127, 0 for -127
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static V minus_product(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
  // Returns g with the sign of x, 0 where x is 0.
  static V signed_by(V g, V x) {
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(1 << 31));
    const V flipped = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(g), sign));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_NEQ_UQ), flipped);
  }
  static V product_minus(V a, V b, V c) { return _mm512_fmsub_ps(a, b, c); }  // a b - c
  // Adds n right angles to the angle of a cosine and a sine, n in the lowest bits of `turns`.
  static void turn_right_angles(V turns, V* cosine, V* sine) {
    const __m512i n = _mm512_castps_si512(turns), one = _mm512_set1_epi32(1);
    const __m512i sign = _mm512_set1_epi32(1 << 31);
    const __mmask16 odd = _mm512_test_epi32_mask(n, one);
    const __m512i c = _mm512_castps_si512(_mm512_mask_blend_ps(odd, *cosine, *sine));
    const __m512i s = _mm512_castps_si512(_mm512_mask_blend_ps(odd, *sine, *cosine));
    const __m512i second = _mm512_slli_epi32(n, 30);  // bit 1 of n, and of n + 1, as the sign
    const __m512i middle = _mm512_slli_epi32(_mm512_add_epi32(n, one), 30);
    *cosine = _mm512_castsi512_ps(_mm512_xor_si512(c, _mm512_and_si512(middle, sign)));
    *sine = _mm512_castsi512_ps(_mm512_xor_si512(s, _mm512_and_si512(second, sign)));
  }
  static uint32_t less(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

  // Sets dst[j * dst_stride + i] = rows[i][offset + j] for i, j < 16.
  static void transpose(const float* const* rows, int64_t offset, float* dst, int64_t dst_stride) {
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = load(rows[i] + offset);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      r[i] = pair_lo(t[i], t[i + 2]);
      r[i + 1] = pair_hi(t[i], t[i + 2]);
      r[i + 2] = pair_lo(t[i + 1], t[i + 3]);
      r[i + 3] = pair_hi(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      store(dst + i * dst_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
      store(dst + (i + 8) * dst_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD));
    }
  }

 private:
  static V pair_lo(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static V pair_hi(V a, V b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace
}  // namespace kgfast
