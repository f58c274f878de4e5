// The rscf scores of pairwise and indexed pairs: a pair has a phase a b and a scale w, as
//   rscf_rotate  sum_k |q_k e^{i a_k b_k} - w_k * c_k|       rscf_l1, rscf_l2  |q + a b - w c|.
// Planes: query [q re, q im, w re, w im, a] or [q, w, a], row [c re, c im, b] or [c, b]; a and b
// are missing where there is no factor.
//
// rscf_rotate turns a query by e^{ia} beforehand (phase.h).
//
// Cost model (rscf_rotate, AVX-512), operations of a vector of 16 elements: phase, cosine and sine
// 10, turning 4, the rest 10 of which rsqrt14 3, so 24 against 10 of rotate; without a factor 10.
// The gradient is 39 against 15.
#pragma once
#include "scores/common.h"
#include "scores/phase.h"

namespace kgfast {
namespace {

template <bool Factor>
struct RscfRotate : RealRows {
  static constexpr Terms terms = Terms::moduli;
  static constexpr int query_planes = Factor ? 5 : 4, row_planes = Factor ? 3 : 2;
  static constexpr int group = Simd::W == 16 ? 2 : 1;
  static constexpr bool is_rscf = true, has_phase = Factor, has_near = true;
  static constexpr float grad_scale = 0.5f;  // `backward` doubles

  template <bool Near>
  static V add(V sum, const V* q, const V* c, V* worst) {
    const Phasor turn = phasor_of_row<Near>(q[4], c[2], worst);
    const V re = Simd::product_minus(q[0], turn.cosine, Simd::mul(q[1], turn.sine));
    const V im = Simd::fma(q[0], turn.sine, Simd::mul(q[1], turn.cosine));
    return add_modulus(sum, Simd::minus_product(q[2], c[0], re),
                       Simd::minus_product(q[3], c[1], im));
  }
  static V add(V sum, const V* q, const V* c) {
    return add_modulus(sum, Simd::minus_product(q[2], c[0], q[0]),
                       Simd::minus_product(q[3], c[1], q[1]));
  }
  static V finish(V sum) { return Simd::mul(sum, Simd::set1(0.5f)); }

  template <bool Near>
  static void backward(V g, const V* q, const V* c, V* dq, V* dc, Extremes* met) {
    if constexpr (!Factor) {
      V x = Simd::minus_product(q[2], c[0], q[0]), y = Simd::minus_product(q[3], c[1], q[1]);
      backward_scales<Near>(g, q, c, &x, &y, dq, dc, met);
      dq[0] = Simd::sub(dq[0], x);
      dq[1] = Simd::sub(dq[1], y);
      return;
    }
    const Phasor turn = phasor_of_row<Near>(q[4], c[2], &met->phase);
    const V re = Simd::product_minus(q[0], turn.cosine, Simd::mul(q[1], turn.sine));
    const V im = Simd::fma(q[0], turn.sine, Simd::mul(q[1], turn.cosine));
    V x = Simd::minus_product(q[2], c[0], re), y = Simd::minus_product(q[3], c[1], im);
    backward_scales<Near>(g, q, c, &x, &y, dq, dc, met);
    dq[0] = Simd::minus_product(x, turn.cosine, Simd::minus_product(y, turn.sine, dq[0]));
    dq[1] = Simd::fma(x, turn.sine, Simd::minus_product(y, turn.cosine, dq[1]));
    const V phase = Simd::product_minus(x, im, Simd::mul(y, re));
    dq[4] = Simd::fma(phase, c[2], dq[4]);
    dc[2] = Simd::fma(phase, q[4], dc[2]);
  }

  static void turn(V* q) {
    const Phasor by = phasor_of_query(q[4]);
    const V re = Simd::product_minus(q[0], by.cosine, Simd::mul(q[1], by.sine));
    q[1] = Simd::fma(q[0], by.sine, Simd::mul(q[1], by.cosine));
    q[0] = re;
  }
  static void turn_back(V a, V* dq) {
    const Phasor by = phasor_of_query(a);
    const V re = Simd::fma(dq[0], by.cosine, Simd::mul(dq[1], by.sine));
    dq[1] = Simd::product_minus(dq[1], by.cosine, Simd::mul(dq[0], by.sine));
    dq[0] = re;
  }

 private:
  static V add_modulus(V sum, V x, V y) {
    return Simd::add_two_sqrt(sum, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
  }
  // Adds the gradients of w and c; multiplies (x, y) by g over the modulus of (x, y).
  template <bool Near>
  static void backward_scales(V g, const V* q, const V* c, V* x, V* y, V* dq, V* dc,
                              Extremes* met) {
    const V by = Simd::two_over_sqrt(g, squared_modulus<Near>(x, y, met));
    *x = Simd::mul(by, *x);
    *y = Simd::mul(by, *y);
    dq[2] = Simd::fma(*x, c[0], dq[2]);
    dq[3] = Simd::fma(*y, c[1], dq[3]);
    dc[0] = Simd::fma(*x, q[2], dc[0]);
    dc[1] = Simd::fma(*y, q[3], dc[1]);
  }
};

// Shared part of rscf_l1 and rscf_l2: e = q + a b - w c, and the places of its gradient.
template <bool Factor>
struct RscfReal : RealRows {
  static constexpr int query_planes = Factor ? 3 : 2, row_planes = Factor ? 2 : 1;
  static constexpr bool is_rscf = true;
  static constexpr int group = Simd::W == 16 ? 4 : 2;

  static V difference(const V* q, const V* c) {
    if constexpr (Factor) return Simd::minus_product(q[1], c[0], Simd::fma(q[2], c[1], q[0]));
    return Simd::minus_product(q[1], c[0], q[0]);
  }
  static void backward_by(V x, const V* q, const V* c, V* dq, V* dc) {
    dq[0] = Simd::sub(dq[0], x);
    dq[1] = Simd::fma(x, c[0], dq[1]);
    dc[0] = Simd::fma(x, q[1], dc[0]);
    if constexpr (Factor) {
      dq[2] = Simd::minus_product(x, c[1], dq[2]);
      dc[1] = Simd::minus_product(x, q[2], dc[1]);
    }
  }
};

template <bool Factor>
struct RscfL1 : RscfReal<Factor> {
  using Base = RscfReal<Factor>;
  static constexpr Terms terms = Terms::magnitudes;
  static V add(V sum, const V* q, const V* c) {
    return Simd::add(sum, Simd::abs(Base::difference(q, c)));
  }
  static V finish(V sum) { return sum; }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {
    Base::backward_by(Simd::signed_by(g, Base::difference(q, c)), q, c, dq, dc);
  }
};

template <bool Factor>
struct RscfL2 : RscfReal<Factor> {
  using Base = RscfReal<Factor>;
  static constexpr Terms terms = Terms::squares;
  static V add(V sum, const V* q, const V* c) {
    const V x = Base::difference(q, c);
    return Simd::fma(x, x, sum);
  }
  static V finish(V sum) { return Simd::sqrt(sum); }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {  // g: already over the norm
    Base::backward_by(Simd::mul(g, Base::difference(q, c)), q, c, dq, dc);
  }
};

}  // namespace
}  // namespace kgfast
