// Base and helpers of the functors of all scores.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

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
  static constexpr bool has_near = false;  // `backward` has a faster way for usual numbers (Near)
  static V finish(V sum) { return sum; }
  static double score(double sum) { return -sum; }
};

// Numbers met by a way that takes them to be usual.
struct Extremes {
  V phase = Simd::zero();  // largest square of a phase
  V least = Simd::set1(1.0f), most = Simd::zero();  // squares of moduli
};

// Squares of moduli that are precise in float32: kTiny and flushed addends change nothing.
constexpr float kLeastSquare = 0x1p-99f, kMostSquare = 0x1p126f;

// Returns the squared modulus of a difference, plus kTiny. Without Near, first divides the
// difference by its larger part, so that no square is too small or too large. The direction stays.
template <bool Near>
inline V squared_modulus(V* x, V* y, Extremes* met) {
  if constexpr (!Near) {
    const V larger = Simd::max(Simd::max(Simd::abs(*x), Simd::abs(*y)), Simd::set1(FLT_MIN));
    *x = Simd::div(*x, larger);
    *y = Simd::div(*y, larger);
  }
  const V square = Simd::fma(*x, *x, Simd::fma(*y, *y, Simd::set1(kTiny)));
  met->least = Simd::min(met->least, square);
  met->most = Simd::max(met->most, square);
  return square;
}

// Loads up to W floats, padded with zeros.
__attribute__((always_inline)) inline V load_lanes(const float* from, int64_t count) {
  if (count >= Simd::W) return Simd::load(from);
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#elif defined(__AVX2__)
  const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i ends = _mm256_set1_epi32(static_cast<int>(count));
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(ends, place));
#else
  alignas(64) float lanes[Simd::W] = {};
  std::memcpy(lanes, from, sizeof(float) * count);
  return Simd::load(lanes);
#endif
}

// Stores the first `count` floats of a vector, or all.
__attribute__((always_inline)) inline void store_lanes(float* to, V v, int64_t count) {
  if (count >= Simd::W) return Simd::store(to, v);
  float lanes[Simd::W];
  Simd::store(lanes, v);
  if (count > 0) std::memcpy(to, lanes, sizeof(float) * count);
}

inline float sum_of(V x) {  // by a tree
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#else
  alignas(64) float lanes[Simd::W];
  Simd::store(lanes, x);
  for (int half = Simd::W / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}

inline float most_of(V x) {  // no number is a NaN
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  alignas(64) float lanes[Simd::W];
  Simd::store(lanes, x);
  return *std::max_element(lanes, lanes + Simd::W);
#endif
}

template <class Score>
constexpr bool is_monotone = Score::terms != Terms::products;

template <class Score>
constexpr int lanes_of() {
  return Score::vectors * Simd::W;
}

}  // namespace
}  // namespace kgfast
