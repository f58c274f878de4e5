// Four lanes of whatever the compiler's default target has: SSE2, NEON, or plain scalars.
#pragma once
#include <cmath>
#include <cstdint>
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kgfast {
namespace {

struct Simd {
  typedef float V __attribute__((vector_size(16), aligned(4), may_alias));
  typedef int32_t Bits __attribute__((vector_size(16)));
  static constexpr int W = 4;
  static constexpr bool fuses = false;
  static V fma(V a, V b, V c) { return a * b + c; }  // two roundings; the bound allows them
  static constexpr double sqrt_error = 0x1p-24;  // correctly rounded

  static V zero() { return V{}; }
  static V set1(float x) { return V{x, x, x, x}; }
  static V load(const float* p) { return *reinterpret_cast<const V*>(p); }
  static void store(float* p, V x) { *reinterpret_cast<V*>(p) = x; }
  static V add(V a, V b) { return a + b; }
  static V sub(V a, V b) { return a - b; }
  static V mul(V a, V b) { return a * b; }
  static V abs(V a) { return (V)((Bits)a & 0x7FFFFFFF); }
  static V max(V a, V b) { return a > b ? a : b; }
  static V min(V a, V b) { return a < b ? a : b; }
  static V sqrt(V a) {
#if defined(__SSE2__)
    return (V)_mm_sqrt_ps((__m128)a);
#elif defined(__aarch64__)
    return (V)vsqrtq_f32((float32x4_t)a);
#else
    return V{std::sqrt(a[0]), std::sqrt(a[1]), std::sqrt(a[2]), std::sqrt(a[3])};
#endif
  }
  static V add_sqrt(V acc, V m) { return acc + sqrt(m); }
  static V add_two_sqrt(V acc, V m) {
    const V root = sqrt(m);
    return acc + (root + root);
  }
  static V two_over_sqrt(V g, V m) { return (g + g) / sqrt(m); }
  static V div(V a, V b) { return a / b; }
  static V where_negative(V x, V a, V b) {  // a where x < 0, else b
    const Bits negative = (Bits)(x < V{});
    return (V)((negative & (Bits)a) | (~negative & (Bits)b));
  }
  static V power_of_two(V n) {  // 2^n for whole n in -126 .. 127, 0 for -127
    const Bits biased = (Bits)(n + (0x1p23f + 127.0f));  // the lowest bits are n + 127
    return (V)(biased << 23);
  }
  static V minus_product(V a, V b, V c) { return fma(-a, b, c); }  // c - a b
  // Returns g with the sign of x, 0 where x is 0.
  static V signed_by(V g, V x) {
    const Bits flipped = (Bits)g ^ ((Bits)x & (int32_t)0x80000000);
    return (V)((Bits)(x != V{}) & flipped);
  }
  static V product_minus(V a, V b, V c) { return fma(a, b, -c); }
  // Adds n right angles to the angle of a cosine and a sine, n in the lowest bits of `turns`.
  static void turn_right_angles(V turns, V* cosine, V* sine) {
    const Bits n = (Bits)turns, odd = -(n & 1), even = ~odd;
    const Bits c = (Bits)*cosine, s = (Bits)*sine;
    const Bits sign = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN};
    // Bit 1 of n, and of n + 1, as the sign.
    *cosine = (V)(((c & even) | (s & odd)) ^ (((n + 1) << 30) & sign));
    *sine = (V)(((s & even) | (c & odd)) ^ ((n << 30) & sign));
  }
  static uint32_t less(V a, V b) {
    Bits mask = (Bits)(a < b);
    return (mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8);
  }

  // Sets dst[j * dst_stride + i] = rows[i][offset + j] for i, j < 4.
  static void transpose(const float* const* rows, int64_t offset, float* dst, int64_t dst_stride) {
    for (int i = 0; i < W; ++i)
      for (int j = 0; j < W; ++j) dst[j * dst_stride + i] = rows[i][offset + j];
  }
};

}  // namespace
}  // namespace kgfast
