// Functors of pairwise and indexed scores: as precise as float32 allows, as nothing decides their
// pairs afterwards. Each functor gives the planes of a row, the factor included, and the candidates
// that a backward holds in registers.
#pragma once
#include "scores/scores.h"

namespace kgfast {
namespace {

template <class Score>
struct Precise : Score {
  static_assert(Score::terms != Terms::moduli, "the sweep's square root is not precise enough");
  static constexpr int row_planes = Score::planes;
  static constexpr int group = (Simd::W == 16 ? 8 : 4) / (Score::is_rscf ? 2 : 1);
};

template <>
struct Precise<Rotate> : Rotate {
  static constexpr int row_planes = 2, group = Simd::W == 16 ? 4 : 2;
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    return Simd::add_two_sqrt(sum, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
  }
  static V finish(V sum) { return Simd::mul(sum, Simd::set1(0.5f)); }
};

template <bool Factor>
struct Precise<SweptRotate<Factor>> : RscfRotate<Factor> {};

// Adds one feature's share of a score. Phases that are not near need Near = false; `worst` keeps
// the largest square of a phase, to tell such phases.
template <class Score, bool Near>
inline V add_term(V sum, const V* q, const V* c, V* worst) {
  if constexpr (Score::has_phase)
    return Score::template add<Near>(sum, q, c, worst);
  else
    return Score::add(sum, q, c);
}

template <class Score, bool Near>
inline void backward_term(V g, const V* q, const V* c, V* dq, V* dc, Extremes* met) {
  if constexpr (Score::has_near)
    Score::template backward<Near>(g, q, c, dq, dc, met);
  else
    Score::backward(g, q, c, dq, dc);
}

// Turns whole vectors of a query [planes][stride], if the score has phases.
template <class Score>
inline void turn_query(float* query, int64_t stride, int64_t count) {
  if constexpr (Score::has_phase)
    for (int64_t i = 0; i < count; i += Simd::W) {
      V q[5] = {Simd::load(query + i), Simd::load(query + stride + i), Simd::zero(), Simd::zero(),
                Simd::load(query + 4 * stride + i)};
      Score::turn(q);
      Simd::store(query + i, q[0]);
      Simd::store(query + stride + i, q[1]);
    }
}

// Turns the gradient of a query back, if the score has phases; `a` is the query's last plane.
template <class Score>
inline void turn_gradient(const float* a, float* grad, int64_t stride, int64_t count) {
  if constexpr (Score::has_phase)
    for (int64_t i = 0; i < count; i += Simd::W) {
      V dq[2] = {Simd::load(grad + i), Simd::load(grad + stride + i)};
      Score::turn_back(Simd::load(a + i), dq);
      Simd::store(grad + i, dq[0]);
      Simd::store(grad + stride + i, dq[1]);
    }
}

inline bool all_near(V worst) { return !Simd::less(Simd::set1(kNearSquare), worst); }
template <class Score>
inline bool all_near(const Extremes& met) {
  const uint32_t far = Simd::less(met.least, Simd::set1(kLeastSquare)) |
                       Simd::less(Simd::set1(kMostSquare), met.most);
  return !far && (!Score::has_phase || all_near(met.phase));
}

// True if these numbers, [planes][W], belong to no difference whose squared modulus is imprecise.
// The parts of such a difference are tiny numbers, at least one of which is not 0, or are huge. Not
// so around rscf, if q is the rounded product w c: a gradient of what is left has few digits.
template <class Score>
inline bool are_usual(const float* numbers, int planes) {
  constexpr float tiny = Score::is_rscf ? 0x1p-27f : 0x1p-26f;
  constexpr float huge = Score::is_rscf ? 0x1p30f : 0x1p61f;
  for (int p = 0; p < planes; ++p) {
    const V size = Simd::abs(Simd::load(numbers + p * Simd::W));
    if (Simd::less(size, Simd::set1(tiny)) & Simd::less(Simd::zero(), size)) return false;
    if (Simd::less(Simd::set1(huge), size)) return false;
  }
  return true;
}

template <class F>
inline auto with_precise(ScoreId id, F&& call) {
  return with_score(id, [&](auto score) { return call(Precise<decltype(score)>{}); });
}

}  // namespace
}  // namespace kgfast
