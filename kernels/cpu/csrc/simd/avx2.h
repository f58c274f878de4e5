// AVX2 with FMA and F16C. 256-bit float operations go to ports 0, 1 (and 5); rsqrtps to port 0
// once a cycle, against sqrtps once in six.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace kgfast {
namespace {

struct Simd {
  using V = __m256;
  static constexpr int W = 8;
  static constexpr bool fuses = true;  // fma rounds once
  static constexpr double sqrt_error = 1.5 * 0x1p-12;  // rsqrtps, Intel SDM and AMD APM

  static V zero() { return _mm256_setzero_ps(); }
  static V set1(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x); }
  static V add(V a, V b) { return _mm256_add_ps(a, b); }
  static V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V abs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static V max(V a, V b) { return _mm256_max_ps(a, b); }
  static V min(V a, V b) { return _mm256_min_ps(a, b); }
  static V sqrt(V a) { return _mm256_sqrt_ps(a); }
  // Returns acc + sqrt(m) for m > 0; not finite where m is not.
  static V add_sqrt(V acc, V m) { return _mm256_fmadd_ps(m, _mm256_rsqrt_ps(m), acc); }
  // Adds 2 sqrt(m) in full float32 precision, m > 0: one Newton step, r (3 - m r^2) / 2.
  static V add_two_sqrt(V acc, V m) {
    const V r = _mm256_rsqrt_ps(m), root = mul(m, r);
    return fma(root, _mm256_fnmadd_ps(root, r, set1(3.0f)), acc);
  }
  // Returns 2 g / sqrt(m) in full float32 precision, m > 0, by one Newton step.
  static V two_over_sqrt(V g, V m) {
    const V r = _mm256_rsqrt_ps(m);
    return mul(mul(g, r), _mm256_fnmadd_ps(mul(m, r), r, set1(3.0f)));
  }
  static V div(V a, V b) { return _mm256_div_ps(a, b); }
  static V where_negative(V x, V a, V b) {  // a where x < 0, else b
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
  }
  static V power_of_two(V n) {  // 2^n for whole n in -126 .. 127, 0 for -127
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static V minus_product(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
  // Returns g with the sign of x, 0 where x is 0.
  static V signed_by(V g, V x) {
    const V flipped = _mm256_xor_ps(g, _mm256_and_ps(x, set1(-0.0f)));
    return _mm256_and_ps(_mm256_cmp_ps(x, zero(), _CMP_NEQ_UQ), flipped);
  }
  static V product_minus(V a, V b, V c) { return _mm256_fmsub_ps(a, b, c); }  // a b - c
  // Adds n right angles to the angle of a cosine and a sine, n in the lowest bits of `turns`.
  static void turn_right_angles(V turns, V* cosine, V* sine) {
    const __m256i n = _mm256_castps_si256(turns), one = _mm256_set1_epi32(1);
    const __m256 odd = _mm256_castsi256_ps(_mm256_slli_epi32(n, 31)), sign = set1(-0.0f);
    const V c = _mm256_blendv_ps(*cosine, *sine, odd), s = _mm256_blendv_ps(*sine, *cosine, odd);
    const __m256i second = _mm256_slli_epi32(n, 30);  // bit 1 of n, and of n + 1, as the sign
    const __m256i middle = _mm256_slli_epi32(_mm256_add_epi32(n, one), 30);
    *cosine = _mm256_xor_ps(c, _mm256_and_ps(_mm256_castsi256_ps(middle), sign));
    *sine = _mm256_xor_ps(s, _mm256_and_ps(_mm256_castsi256_ps(second), sign));
  }
  static uint32_t less(V a, V b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
  }

  // Sets dst[j * dst_stride + i] = rows[i][offset + j] for i, j < 8.
  static void transpose(const float* const* rows, int64_t offset, float* dst, int64_t dst_stride) {
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = load(rows[i] + offset);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      store(dst + i * dst_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      store(dst + (i + 4) * dst_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }
};

}  // namespace
}  // namespace kgfast
