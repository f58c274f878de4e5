// The functors of the rscf scores for ranking and top-k: one per score, as in scores.h, with the
// bound of docs/explanation/exactness.md. A query brings a scale w of the candidate and, where the
// candidate has a factor b, the a of a phase a b (rscf_rotate) or of a shift a b (rscf_l1,
// rscf_l2).
//
// b is near 1, so e^{iab} = e^{ia} e^{ia(b-1)}: packing turns the query by e^{ia} and stores b - 1,
// and the angle x = a (b - 1) of a block of features says how many terms its sine and cosine need.
#pragma once
#include "scores/common.h"
#include "scores/phase.h"
#include "scores/trig.h"

namespace kgfast {
namespace {

// The largest |x| that each pair of polynomials serves; beyond, whole turns are taken off.
constexpr float kSmallAngle = 0.9f, kHalfTurn = 3.2f;

enum class Angles { near, shared, small, half_turn, any };

// Returns e^{ix} with errors up to 2^-15 + 5 u |x|: minimax polynomials by Remez's algorithm.
template <Angles range>
inline Phasor turn_by(V x) {
  if constexpr (range == Angles::any) {
    const V whole = Simd::set1(kWholes);
    const V n = Simd::sub(Simd::fma(x, Simd::set1(0x1.45f306p-3f), whole), whole);
    x = Simd::minus_product(n, Simd::set1(0x1.921fb6p2f), x);
    x = Simd::minus_product(n, Simd::set1(-0x1.777a5cp-23f), x);
  }
  const V z = Simd::mul(x, x);
  if constexpr (range == Angles::small) {
    V c = Simd::fma(z, Simd::set1(0x1.47bfap-5f), Simd::set1(-0x1.ff7cd6p-2f));
    V s = Simd::fma(z, Simd::set1(0x1.07fc8ap-7f), Simd::set1(-0x1.551adp-3f));
    c = Simd::fma(z, c, Simd::set1(0x1.fffd1p-1f));
    s = Simd::fma(z, s, Simd::set1(0x1.fffe86p-1f));
    return {c, Simd::mul(x, s)};
  }
  V c = Simd::fma(z, Simd::set1(-0x1.d3f7fp-23f), Simd::set1(0x1.955f5p-16f));
  V s = Simd::fma(z, Simd::set1(0x1.1d9234p-19f), Simd::set1(-0x1.932a84p-13f));
  c = Simd::fma(z, c, Simd::set1(-0x1.6b377p-10f));
  s = Simd::fma(z, s, Simd::set1(0x1.102e7p-7f));
  c = Simd::fma(z, c, Simd::set1(0x1.5544cep-5f));
  s = Simd::fma(z, s, Simd::set1(-0x1.553bd4p-3f));
  c = Simd::fma(z, c, Simd::set1(-0x1.fffe34p-2f));
  s = Simd::fma(z, s, Simd::set1(0x1.fffcc6p-1f));
  return {Simd::fma(z, c, Simd::set1(0x1.ffffep-1f)), Simd::mul(x, s)};
}

// sum_k |q_k e^{i a_k b_k} - w_k * c_k|, or without the phase.
// Planes: [q re, q im, w re, w im, a] and [c re, c im, b - 1]. 17 instructions and a reciprocal
// square root while angles are small, 22 up to half a turn, 26 beyond; 6 without a factor.
//
// Queries of one relation share w and nearly a. A pass of such queries moves the candidates once,
// u = w * c e^{-ia(b - 1)}, and turns a query by y = d(b - 1), d = (a of the query - a), as 1 + iy
// or 1 + iy - yy/2, by SweepJob::shared_terms.
// Planes: [q re, q im, d q re, d q im, 0] and [u re, u im, b - 1]. 8 instructions.
// Or [q re, q im, 2 q re, 2 q im, d/2]. 11 instructions.
template <bool Factor>
struct SweptRotate : RealRows {
  static constexpr ScoreId id{Factor ? 4 : -4};
  static constexpr Terms terms = Terms::moduli;
  static constexpr int planes = Factor ? 3 : 2, query_planes = Factor ? 5 : 4, vectors = 2;
  static constexpr bool is_rscf = true, has_factor = Factor, has_phase = Factor;
  static constexpr float factor_origin = 1.0f;

  static V squared(V x, V y) { return Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))); }
  static V squared(V re, V im, const V* q, const V* c) {
    return squared(Simd::minus_product(q[2], c[0], re), Simd::minus_product(q[3], c[1], im));
  }
  static V add(V sum, const V* q, const V* c) {
    return Simd::add_sqrt(sum, squared(q[0], q[1], q, c));
  }
  template <Angles range>
  static V square_of(const V* q, const V* c) {
    if constexpr (range <= Angles::shared) {
      constexpr bool is_near = range == Angles::near;
      const V half = is_near ? c[2] : Simd::mul(q[4], c[2]);
      const V x = is_near ? q[2] : Simd::minus_product(half, q[3], q[2]);
      const V y = is_near ? q[3] : Simd::fma(half, q[2], q[3]);
      const V re = Simd::minus_product(half, y, Simd::sub(q[0], c[0]));
      const V im = Simd::fma(half, x, Simd::sub(q[1], c[1]));
      return squared(re, im);
    }
    const Phasor turn = turn_by<range>(Simd::mul(q[4], c[2]));
    const V re = Simd::minus_product(q[1], turn.sine, Simd::mul(q[0], turn.cosine));
    const V im = Simd::fma(q[1], turn.cosine, Simd::mul(q[0], turn.sine));
    return squared(re, im, q, c);
  }

  // Prepares one feature of a query when the query is packed.
  static void prepare(double* q) {
    const CosSin turn = cos_sin(q[4]);
    const double re = q[0] * turn.cosine - q[1] * turn.sine;
    q[1] = q[0] * turn.sine + q[1] * turn.cosine;
    q[0] = re;
  }
  static double term(const double* q, const double* c) {
    double re = q[0], im = q[1];
    if constexpr (Factor) {
      const CosSin turn = cos_sin(q[4] * c[2]);
      re = q[0] * turn.cosine - q[1] * turn.sine;
      im = q[0] * turn.sine + q[1] * turn.cosine;
    }
    const double x = re - q[2] * c[0], y = im - q[3] * c[1];
    return std::sqrt(x * x + y * y);
  }
};

template <class Score, Angles range>
struct Within : Score {
  static V add(V sum, const V* q, const V* c) {
    return Simd::add_sqrt(sum, Score::template square_of<range>(q, c));
  }
};

// The difference of rscf_l1 and rscf_l2, e = q + a b - w c. Planes: [q, w, a] and [c, b].
// 3 instructions, 2 without a factor.
template <bool Factor>
struct SweptReal : RealRows {
  static constexpr int planes = Factor ? 2 : 1, query_planes = Factor ? 3 : 2;
  static constexpr bool is_rscf = true, has_factor = Factor;

  static V difference(const V* q, const V* c) {
    if constexpr (Factor) return Simd::minus_product(q[1], c[0], Simd::fma(q[2], c[1], q[0]));
    return Simd::minus_product(q[1], c[0], q[0]);
  }
  static double exact_difference(const double* q, const double* c) {
    if constexpr (Factor) return (q[0] + q[2] * c[1]) - q[1] * c[0];
    return q[0] - q[1] * c[0];
  }
  static void backward_by_product(V g, V e, const V* q, const V* c, V* dq, V* dc) {
    backward_by(Simd::mul(g, e), q, c, dq, dc);
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

// rscf_rotate of pairwise and indexed pairs, which turns a query by e^{ia} beforehand (phase.h).
//
// Cost model (AVX-512), operations of a vector of 16 elements: phase, cosine and sine 12, turning
// 4, the rest 10 of which rsqrt14 3, so 26 against 10 of rotate; without a factor 10. The gradient
// is 41 against 15.
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

}  // namespace
}  // namespace kgfast
