// Sine and cosine of phases a b. Errors, measured: 1.6e-7 up to 1e4 radians, 1.2e-6 up to 2^20.
//
// b is near 1, so a query is turned by e^{ia} once, and then for each row by y = a (b - 1): where
// |y| < 1.54 no right angles are taken off (Near). The general way gives the same bits there, so
// that a lane's result does not depend on the way that its neighbours need.
//
// Cost model: Near 12 instructions a vector, else 41; without fma those are some hundred.
#pragma once
#include "scores/common.h"

namespace kgfast {
namespace {

constexpr float kNearSquare = 2.38f;    // squares of phases that Near serves: |y| < 1.543
constexpr float kNear = 1.549f;         // below this, all ways agree to take off no right angle
constexpr float kTurnable = 0x1.00002p20f;  // |a| beyond: as |ab| <= 2^20, no phase is near
constexpr float kWholes = 0x1.8p23f;    // adding this rounds to whole numbers, into the lowest bits

struct Phasor {
  V cosine, sine;
};

// Returns e^{iy}, |y| <= kNear: minimax polynomials, exact at 0. Errors, measured: below 1.25e-7,
// without fma below 1.6e-7.
inline Phasor phasor_within(V y, V square) {
  V s = Simd::fma(square, Simd::set1(0x1.5d877ap-19f), Simd::set1(-0x1.9f69ccp-13f));
  V c = Simd::fma(square, Simd::set1(0x1.85da16p-16f), Simd::set1(-0x1.6b4538p-10f));
  s = Simd::fma(square, s, Simd::set1(0x1.110ea2p-7f));
  c = Simd::fma(square, c, Simd::set1(0x1.555024p-5f));
  s = Simd::fma(square, s, Simd::set1(-0x1.55554ap-3f));
  c = Simd::fma(square, c, Simd::set1(-0x1.ffffd6p-2f));
  return {Simd::fma(square, c, Simd::set1(1.0f)), Simd::fma(Simd::mul(square, s), y, y)};
}

inline V where_below(V x, float limit, V a, V b) {  // a where |x| < limit, else b
  return Simd::where_negative(Simd::sub(Simd::abs(x), Simd::set1(limit)), a, b);
}

// Returns r where a b - s = r + n pi/2, |ab - s| < 2^21 + 4: Cody and Waite's, exact up to the last
// addition. `y` is ab - s rounded; n is in the lowest bits of `turns`.
inline V reduce_fused(V a, V b, V s, V y, V* turns) {
  const V product = Simd::mul(a, b), t = Simd::sub(product, s);
  const V from = Simd::sub(product, t), back = Simd::add(t, from);
  V low = Simd::add(Simd::sub(product, back), Simd::sub(from, s));  // t + low = product - s
  low = Simd::add(Simd::add(Simd::sub(t, y), low), Simd::product_minus(a, b, product));
  const V whole = Simd::set1(kWholes);
  *turns = where_below(y, kNear, whole, Simd::fma(y, Simd::set1(0x1.45f306p-1f), whole));
  const V n = Simd::sub(*turns, whole);
  V r = Simd::minus_product(n, Simd::set1(0x1.921fb6p0f), y);
  r = Simd::minus_product(n, Simd::set1(-0x1.777a5cp-25f), r);
  return Simd::add(r, where_below(y, kNear, Simd::zero(), low));
}

// Reduces as reduce_fused does, without fma, in float64.
inline V reduce_in_double(V a, V b, V s, V y, V* turns) {
  alignas(64) float as[Simd::W], bs[Simd::W], ss[Simd::W], rs[Simd::W], ns[Simd::W];
  Simd::store(as, a);
  Simd::store(bs, b);
  Simd::store(ss, s);
  for (int i = 0; i < Simd::W; ++i) {
    const double x = static_cast<double>(as[i]) * bs[i] - ss[i];
    const double n = (x * 0.6366197723675814 + 0x1.8p52) - 0x1.8p52;
    const double r = (x - n * 1.5707963267341256) - n * 6.077100506303966e-11;
    rs[i] = static_cast<float>(r);
    ns[i] = static_cast<float>(n) + kWholes;
  }
  *turns = where_below(y, kNear, Simd::set1(kWholes), Simd::load(ns));
  return where_below(y, kNear, y, Simd::load(rs));
}

// Returns e^{i (ab - s)}; `y` is ab - s rounded.
inline Phasor phasor_any(V a, V b, V s, V y) {
  V turns;
  const V r = Simd::fuses ? reduce_fused(a, b, s, y, &turns) : reduce_in_double(a, b, s, y, &turns);
  Phasor turn = phasor_within(r, Simd::mul(r, r));
  Simd::turn_right_angles(turns, &turn.cosine, &turn.sine);
  return turn;
}

// Returns e^{ia}, by which a query is turned beforehand, or 1 where the query is not turned.
inline Phasor phasor_of_query(V a) {
  const Phasor turn = phasor_any(a, Simd::set1(1.0f), Simd::zero(), a);
  return {where_below(a, kTurnable, turn.cosine, Simd::set1(1.0f)),
          where_below(a, kTurnable, turn.sine, Simd::zero())};
}

// Returns the turn of a query that is left for a row. `worst` keeps the largest square of a phase
// that was taken to be near.
template <bool Near>
inline Phasor phasor_of_row(V a, V b, V* worst) {
  const V one = Simd::set1(1.0f);
  const V less = Simd::fuses ? Simd::product_minus(a, b, a) : Simd::mul(a, Simd::sub(b, one));
  if constexpr (Near) {
    const V square = Simd::mul(less, less);
    *worst = Simd::max(square, *worst);  // forgets NaNs, which spoil no other number
    return phasor_within(less, square);
  }
  const V y = where_below(a, kTurnable, less, Simd::mul(a, b));
  return phasor_any(a, b, where_below(a, kTurnable, a, Simd::zero()), y);
}

// Returns a bound, up to rounding, on the squares of phases of rows within `spread` of 1.
inline V phase_square(V largest_a, V spread) {
  const V y = Simd::mul(largest_a, spread);
  return Simd::mul(y, y);
}

}  // namespace
}  // namespace kgfast
