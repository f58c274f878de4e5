// Exponentials, softplus and sigmoid of scores whose operands were rounded to bf16.
//
// Cost model, per vector: a power of two is 7 instructions, and 2 more with an exponent of -|x| or
// x - shift. Softplus is 11 more, and sigmoid 7.
//
// Errors: exponentials 2.5 units of 2^-24, their arguments one more of each.
#pragma once
#include "scores/common.h"

namespace kgfast {
namespace {

constexpr float kLog2E = 0x1.715476p0f;

// Returns 2^t, with an error of 2.5 units of 2^-24: by a minimax polynomial of degree 5 on [0, 1),
// whose relative error is 7.5e-8. Beyond the range the result is 0 or infinity.
inline V power_of_two(V t) {
  const V f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // t - floor(t)
  V p = Simd::set1(0.00187757667f);
  for (const float c : {0.00898934009f, 0.0558263181f, 0.240153617f, 0.693153073f, 0.999999925f})
    p = Simd::fma(p, f, Simd::set1(c));
  return _mm512_scalef_ps(p, t);
}

// Returns log(1 + t), t in [0, 1]: t times a minimax polynomial of degree 8, relative error 3.0e-8.
inline V log_above_one(V t) {
  V p = Simd::set1(0.00523269426f);
  for (const float c : {-0.0295052388f, 0.0782259519f, -0.136632458f, 0.191060068f, -0.248429822f,
                        0.333190968f, -0.499994931f, 0.99999997f})
    p = Simd::fma(p, t, Simd::set1(c));
  return Simd::mul(p, t);
}

// Returns exp(-|x|), which softplus and sigmoid share.
inline V power_below(V x) { return power_of_two(Simd::mul(Simd::abs(x), Simd::set1(-kLog2E))); }

inline V softplus_of(V x, V t) { return Simd::add(Simd::max(Simd::zero(), x), log_above_one(t)); }

inline V sigmoid_of(V x, V t) {
  const V one = Simd::set1(1.0f), sum = Simd::add(one, t);
  const V near = _mm512_rcp14_ps(sum);  // one Newton step: 2^-28
  const V inverse = Simd::mul(near, Simd::minus_product(sum, near, Simd::set1(2.0f)));
  return Simd::mul(Simd::where_negative(x, t, one), inverse);
}

}  // namespace
}  // namespace kgfast
