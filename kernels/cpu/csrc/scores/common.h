// Base and helpers of the functors of all scores.
#pragma once
#include <cfloat>
#include <cmath>

#include "host/job.h"

namespace kgfast {
namespace {

using V = Simd::V;

// Addend of squares, so that a square root by reciprocal never meets zero: 2^-62 of a modulus.
constexpr float kTiny = 0x1p-124f;

// Default facts of a score: distances of real rows.
struct RealRows {
  static constexpr int planes = 1, query_planes = 1;
  static constexpr int tile_queries = 4, vectors = Simd::W == 16 ? 4 : 2;
  static constexpr float query_sign = 1.0f, factor_origin = 0.0f;
  static constexpr float grad_scale = 1.0f;  // scale of the g that `backward` is given
  static constexpr bool is_rscf = false, has_factor = false, has_phase = false;
};

inline V squared_modulus(V x, V y) {
  return Simd::fma(x, x, Simd::fma(y, y, Simd::set1(kTiny)));
}

template <class Score>
constexpr bool is_monotone = Score::terms != Terms::products;

template <class Score>
constexpr int lanes_of() {
  return Score::vectors * Simd::W;
}

}  // namespace
}  // namespace kgfast
