// One functor per score: the equation, the tile that holds it in registers, one line of float32
// for the sweep, one of float64 for the canonical score, and the gradient of the score, which `pull`
// adds to dq and dc; its g is the score's gradient times `pull_scale`. The engines never change.
//
// A sweep accumulates a *distance*, lower is better, so that one comparison serves every score;
// `dot` sweeps the negated query.
#pragma once
#include <cmath>

#include "host/job.h"

namespace kgfast {
namespace {

using V = Simd::V;

// Squares get this added, so that a square root by reciprocal never meets zero: 2^-62 a modulus.
constexpr float kTiny = 0x1p-124f;

// - sum_d q_d c_d.  1 instruction an element; 24 accumulators hide the latency of fma.
struct Dot {
  static constexpr ScoreId id = ScoreId::dot;
  static constexpr int planes = 1, query_planes = 1, tile_queries = Simd::W == 16 ? 8 : 4;
  static constexpr int vectors = Simd::W == 16 ? 3 : 2;
  static constexpr float query_sign = -1.0f, pull_scale = 1.0f;
  static constexpr bool monotone = false, has_factor = false, has_angles = false;
  static V add(V sum, const V* q, const V* c) { return Simd::fma(q[0], c[0], sum); }
  static V finish(V sum) { return sum; }
  static void pull(V g, const V* q, const V* c, V* dq, V* dc) {
    dq[0] = Simd::fma(g, c[0], dq[0]);
    dc[0] = Simd::fma(g, q[0], dc[0]);
  }
  static double term(const double* q, const double* c) { return q[0] * c[0]; }
  static double score(double sum) { return sum; }
};

// sum_d |q_d - c_d|.  3 instructions.
struct L1 {
  static constexpr ScoreId id = ScoreId::l1;
  static constexpr int planes = 1, query_planes = 1;
  static constexpr int tile_queries = 4, vectors = Simd::W == 16 ? 4 : 2;
  static constexpr float query_sign = 1.0f, pull_scale = 1.0f;
  static constexpr bool monotone = true, has_factor = false, has_angles = false;
  static V add(V sum, const V* q, const V* c) {
    return Simd::add(sum, Simd::abs(Simd::sub(q[0], c[0])));
  }
  static V finish(V sum) { return sum; }
  static void pull(V g, const V* q, const V* c, V* dq, V* dc) {
    const V w = Simd::signed_by(g, Simd::sub(q[0], c[0]));
    dq[0] = Simd::sub(dq[0], w);
    dc[0] = Simd::add(dc[0], w);
  }
  static double term(const double* q, const double* c) { return std::fabs(q[0] - c[0]); }
  static double score(double sum) { return -sum; }
};

// sqrt(sum_d (q_d - c_d)^2).  2 instructions; the root once a pair.
struct L2 {
  static constexpr ScoreId id = ScoreId::l2;
  static constexpr int planes = 1, query_planes = 1;
  static constexpr int tile_queries = 4, vectors = Simd::W == 16 ? 4 : 2;
  static constexpr float query_sign = 1.0f, pull_scale = 1.0f;
  static constexpr bool monotone = true, has_factor = false, has_angles = false;
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]);
    return Simd::fma(x, x, sum);
  }
  static V finish(V sum) { return Simd::sqrt(sum); }
  static void pull(V g, const V* q, const V* c, V* dq, V* dc) {  // g: already over the norm
    const V x = Simd::sub(q[0], c[0]);
    dq[0] = Simd::minus_product(g, x, dq[0]);
    dc[0] = Simd::fma(g, x, dc[0]);
  }
  static double term(const double* q, const double* c) {
    const double x = q[0] - c[0];
    return x * x;
  }
  static double score(double sum) { return -std::sqrt(sum); }
};

// sum_k |q_k - c_k|, complex.  5 instructions and a reciprocal square root.
struct Rotate {
  static constexpr ScoreId id = ScoreId::rotate;
  static constexpr int planes = 2, query_planes = 2;
  static constexpr int tile_queries = 4, vectors = Simd::W == 16 ? 4 : 2;
  static constexpr float query_sign = 1.0f, pull_scale = 0.5f;  // `pull` doubles
  static constexpr bool monotone = true, has_factor = false, has_angles = false;
  static V add(V sum, const V* q, const V* c) {
    const V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    return Simd::add_sqrt(sum, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
  }
  static V finish(V sum) { return sum; }
  static void pull(V g, const V* q, const V* c, V* dq, V* dc) {
    const V x = Simd::sub(q[0], c[0]), y = Simd::sub(q[1], c[1]);
    const V w =
        Simd::two_over_sqrt(g, Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny))));
    dq[0] = Simd::minus_product(w, x, dq[0]);
    dq[1] = Simd::minus_product(w, y, dq[1]);
    dc[0] = Simd::fma(w, x, dc[0]);
    dc[1] = Simd::fma(w, y, dc[1]);
  }
  static double term(const double* q, const double* c) {
    const double x = q[0] - c[0], y = q[1] - c[1];
    return std::sqrt(x * x + y * y);
  }
  static double score(double sum) { return -sum; }
};

template <class F>
inline auto with_score(ScoreId id, F&& call) {
  switch (id) {
    case ScoreId::dot: return call(Dot{});
    case ScoreId::l1: return call(L1{});
    case ScoreId::l2: return call(L2{});
    default: return call(Rotate{});
  }
}

}  // namespace
}  // namespace kgfast
