// The scores as pairwise and indexed ones take them: as precise as float32 allows, as nothing
// decides their pairs afterwards. They say how many planes either side has; an rscf score's
// (rscf_precise.h) differ.
#pragma once
#include "scores/scores.h"
#include "scores/rscf_precise.h"

namespace kgfast {
namespace {

template <class Score>
struct Precise : Score {
  static constexpr bool monotone = false;  // nothing is abandoned
  static constexpr int query_planes = Score::planes, row_planes = Score::planes;
  static constexpr int group = (Simd::W == 16 ? 8 : 4) / Score::planes;  // candidates of a pull
  static constexpr bool has_phase = false;
};

template <>
struct Precise<Rotate> : Rotate {
  static constexpr bool monotone = false;
  static constexpr int query_planes = 2, row_planes = 2, group = Simd::W == 16 ? 4 : 2;
  static constexpr bool has_phase = false;
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    return Simd::add_two_sqrt(sum, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
  }
  static V finish(V sum) { return Simd::mul(sum, Simd::set1(0.5f)); }
};

// One feature's share of a score. Of phases, those beyond kNear need Near = false; `worst`, which
// says so, keeps their largest square.
template <class Score, bool Near>
inline V add_term(V sum, const V* q, const V* c, V* worst) {
  if constexpr (Score::has_phase)
    return Score::template add<Near>(sum, q, c, worst);
  else
    return Score::add(sum, q, c);
}

template <class Score, bool Near>
inline void pull_term(V g, const V* q, const V* c, V* dq, V* dc, V* worst) {
  if constexpr (Score::has_phase)
    Score::template pull<Near>(g, q, c, dq, dc, worst);
  else
    Score::pull(g, q, c, dq, dc);
}

// Turns whole vectors of a query [planes][stride], where the score does that beforehand.
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

// Turns the gradient of such a query back; `a` is its last plane.
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

template <class F>
inline auto with_precise(ScoreId id, F&& call) {
  switch (id) {
    case ScoreId::dot: return call(Precise<Dot>{});
    case ScoreId::l1: return call(Precise<L1>{});
    case ScoreId::l2: return call(Precise<L2>{});
    case ScoreId::rotate: return call(Precise<Rotate>{});
    case ScoreId::rscf_rotate: return call(RscfRotate<true>{});
    case ScoreId::rscf_l1: return call(RscfL1<true>{});
    case ScoreId::rscf_l2: return call(RscfL2<true>{});
    case ScoreId::scaled_rotate: return call(RscfRotate<false>{});
    case ScoreId::scaled_l1: return call(RscfL1<false>{});
    default: return call(RscfL2<false>{});
  }
}

}  // namespace
}  // namespace kgfast
