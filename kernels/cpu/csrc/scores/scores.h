// One functor per score: the equation, the tile that holds it in registers, one line of float32 for
// the sweep, one of float64 for the canonical score, and `backward`, which adds gradients to dq and
// dc. The g of `backward` is the score's gradient times `grad_scale`.
//
// A sweep accumulates a *distance*, lower is better, so that one comparison serves every score;
// `dot` sweeps the negated query.
#pragma once
#include "scores/common.h"
#include "scores/rscf.h"

namespace kgfast {
namespace {

// - sum_d q_d c_d.  1 instruction an element; 24 accumulators hide the latency of fma.
struct Dot : RealRows {
  static constexpr ScoreId id{0};
  static constexpr Terms terms = Terms::products;
  static constexpr int tile_queries = Simd::W == 16 ? 8 : 4, vectors = Simd::W == 16 ? 3 : 2;
  static constexpr float query_sign = -1.0f;
  static V add(V sum, const V* q, const V* c) { return Simd::fma(q[0], c[0], sum); }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {
    dq[0] = Simd::fma(g, c[0], dq[0]);
    dc[0] = Simd::fma(g, q[0], dc[0]);
  }
  static double term(const double* q, const double* c) { return q[0] * c[0]; }
  static double score(double sum) { return sum; }
};

// e = q - c.  1 instruction.
struct Difference : RealRows {
  static V difference(const V* q, const V* c) { return Simd::sub(q[0], c[0]); }
  static double exact_difference(const double* q, const double* c) { return q[0] - c[0]; }
  // Adds the gradients of a score whose slope by -e is x, or g e.
  static void backward_by(V x, const V*, const V*, V* dq, V* dc) {
    dq[0] = Simd::sub(dq[0], x);
    dc[0] = Simd::add(dc[0], x);
  }
  static void backward_by_product(V g, V e, const V*, const V*, V* dq, V* dc) {
    dq[0] = Simd::minus_product(g, e, dq[0]);
    dc[0] = Simd::fma(g, e, dc[0]);
  }
};

// sum_d |e_d|.  2 instructions.
template <class Base, int number>
struct Magnitudes : Base {
  static constexpr ScoreId id{number};
  static constexpr Terms terms = Terms::magnitudes;
  static V add(V sum, const V* q, const V* c) {
    return Simd::add(sum, Simd::abs(Base::difference(q, c)));
  }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {
    Base::backward_by(Simd::signed_by(g, Base::difference(q, c)), q, c, dq, dc);
  }
  static double term(const double* q, const double* c) {
    return std::fabs(Base::exact_difference(q, c));
  }
};

// sqrt(sum_d e_d^2).  1 instruction; the root once a pair.
template <class Base, int number>
struct Squares : Base {
  static constexpr ScoreId id{number};
  static constexpr Terms terms = Terms::squares;
  static V add(V sum, const V* q, const V* c) {
    const V x = Base::difference(q, c);
    return Simd::fma(x, x, sum);
  }
  static V finish(V sum) { return Simd::sqrt(sum); }
  static void backward(V g, const V* q, const V* c, V* dq, V* dc) {  // g: already over the norm
    Base::backward_by_product(g, Base::difference(q, c), q, c, dq, dc);
  }
  static double term(const double* q, const double* c) {
    const double x = Base::exact_difference(q, c);
    return x * x;
  }
  static double score(double sum) { return -std::sqrt(sum); }
};

using L1 = Magnitudes<Difference, 1>;
using L2 = Squares<Difference, 2>;
template <bool Factor>
using SweptL1 = Magnitudes<SweptReal<Factor>, Factor ? 5 : -5>;
template <bool Factor>
using SweptL2 = Squares<SweptReal<Factor>, Factor ? 6 : -6>;

// sum_k |q_k - c_k|, complex.  5 instructions and a reciprocal square root.
struct Rotate : RealRows {
  static constexpr ScoreId id{3};
  static constexpr Terms terms = Terms::moduli;
  static constexpr int planes = 2, query_planes = 2;
  static constexpr float grad_scale = 0.5f;  // `backward` doubles
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    return Simd::add_sqrt(sum, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
  }
  static constexpr bool has_near = true;
  template <bool Near>
  static void backward(V g, const V* q, const V* c, V* dq, V* dc, Extremes* met) {
    V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    const V w = Simd::two_over_sqrt(g, squared_modulus<Near>(&x, &y, met));
    dq[0] = Simd::minus_product(w, x, dq[0]);
    dq[1] = Simd::minus_product(w, y, dq[1]);
    dc[0] = Simd::fma(w, x, dc[0]);
    dc[1] = Simd::fma(w, y, dc[1]);
  }
  static double term(const double* q, const double* c) {
    const double x = q[0] - c[0], y = q[1] - c[1];
    return std::sqrt(x * x + y * y);
  }
};

template <class Score, class... Others, class F>
inline auto with_one_of(ScoreId id, F&& call) {
  static_assert(((Score::id != Others::id) && ...), "two functors have one number");
  if (id == Score::id) return call(Score{});
  if constexpr (sizeof...(Others) > 0)
    return with_one_of<Others...>(id, call);
  else
    throw_unknown_score(id);
}

// Calls with the functor of a score for the sweeps of ranking and top-k.
template <class F>
inline auto with_score(ScoreId id, F&& call) {
  return with_one_of<Dot, L1, L2, Rotate, SweptRotate<true>, SweptL1<true>, SweptL2<true>,
                     SweptRotate<false>, SweptL1<false>, SweptL2<false>>(id, call);
}

template <class Score>
void prepare_run(double (*run)[kPackBlock], int64_t count) {
  constexpr int P = Score::query_planes;
  for (int64_t i = 0; i < count; ++i) {
    double q[P];
    for (int plane = 0; plane < P; ++plane) q[plane] = run[plane][i];
    Score::prepare(q);
    for (int plane = 0; plane < P; ++plane) run[plane][i] = q[plane];
  }
}

template <class Score>
constexpr ScoreFacts facts_of() {
  ScoreFacts facts{};
  facts.terms = Score::terms;
  facts.planes = Score::planes;
  facts.query_planes = Score::query_planes;
  facts.lanes = lanes_of<Score>();
  facts.tile_queries = Score::tile_queries;
  facts.is_rscf = Score::is_rscf;
  facts.has_factor = Score::has_factor;
  facts.has_phase = Score::has_phase;
  facts.factor_origin = Score::factor_origin;
  facts.query_sign = Score::query_sign;
  if constexpr (Score::has_phase) facts.prepare = prepare_run<Score>;
  return facts;
}

}  // namespace
}  // namespace kgfast
