// Canonical scores: the definition of a rank. IEEE float64, features in order from 0.0, every
// operation rounded on its own (this extension is compiled with -ffp-contract=off), bias last.
//
// Cost model: terms are elementwise, so the compiler vectorises them; the sums are sequential by
// definition, so kPairBlock pairs interleave.
#pragma once
#include <cstring>

#include "host/fpmode.h"
#include "host/job.h"
#include "host/load.h"
#include "host/scores.h"
#include "scores/scores.h"

namespace kgfast {
namespace {

// Computes terms[i] of features [feature, feature + count) of one pair.
template <class Score>
inline void canonical_terms(const SweepJob& job, Pair pair, int64_t feature, int64_t count,
                            double* operands, double* terms) {
  constexpr int Q = Score::query_planes, P = Score::planes, rows = P - Score::has_factor;
  double* q = operands;
  double* c = operands + kMaxPlanes * kTermBlock;
  for (int plane = 0; plane < Q; ++plane)
    load_doubles(job.query, pair.query, plane, feature, count, q + plane * kTermBlock);
  for (int plane = 0; plane < rows; ++plane)
    load_doubles(job.rows.view, pair.candidate, plane, feature, count, c + plane * kTermBlock);
  if (Score::has_factor)
    load_doubles(job.rows.factor, pair.candidate, 0, feature, count, c + rows * kTermBlock);
  for (int64_t i = 0; i < count; ++i) {
    double qi[Q], ci[P];
#pragma GCC unroll 5
    for (int plane = 0; plane < Q; ++plane) qi[plane] = q[plane * kTermBlock + i];
#pragma GCC unroll 3
    for (int plane = 0; plane < P; ++plane) ci[plane] = c[plane * kTermBlock + i];
    terms[i] = Score::term(qi, ci);
  }
}

// Scores up to kPairBlock pairs, interleaved so that their chains of additions overlap.
template <class Score>
void canonical_block(const SweepJob& job, int64_t features, const Pair* pairs, int64_t count,
                     double* scratch, double* out) {
  double* terms = scratch;  // [kPairBlock][kTermBlock]
  double* operands = scratch + kPairBlock * kTermBlock;
  double sums[kPairBlock] = {};
  for (int64_t feature = 0; feature < features; feature += kTermBlock) {
    const int64_t left = features - feature;
    const int64_t width = left < kTermBlock ? left : kTermBlock;
    for (int64_t p = 0; p < count; ++p)
      canonical_terms<Score>(job, pairs[p], feature, width, operands, terms + p * kTermBlock);
    for (int64_t i = 0; i < width; ++i)
      for (int64_t p = 0; p < kPairBlock; ++p) sums[p] += terms[p * kTermBlock + i];
  }
  for (int64_t p = 0; p < count; ++p) {
    out[p] = Score::score(sums[p]);
    if (job.bias_exact) out[p] += job.bias_exact[pairs[p].candidate];
  }
}

inline void canonical_scores(const SweepJob& job, int64_t features, const Pair* pairs,
                             int64_t count, double* scratch, double* out) {
  const FloatMode mode(FloatMode::kIeee);
  std::memset(scratch, 0, sizeof(double) * kPairBlock * kTermBlock);
  with_score(job.score, [&](auto score) {
    for (int64_t p = 0; p < count; p += kPairBlock) {
      const int64_t block = count - p < kPairBlock ? count - p : kPairBlock;
      canonical_block<decltype(score)>(job, features, pairs + p, block, scratch, out + p);
    }
  });
}

// Returns distances; NaN where a distance is so small that kTiny or flushed squares changed it.
// Adds to `spoiled` the lanes of such distances, and of distances that overflowed.
inline V nan_if_tiny(V distance, int64_t features, uint32_t* spoiled) {
  const V beyond = Simd::sub(distance, Simd::set1(static_cast<float>(features) * 0x1p-38f));
  const V most = Simd::set1(FLT_MAX);
  *spoiled |= (Simd::less(Simd::zero(), beyond) & Simd::less(beyond, most)) ^ ((1u << Simd::W) - 1);
  return Simd::where_negative(beyond, Simd::set1(NAN), distance);
}

// Writes the canonical scores of a query with `count` candidates, of each crop, where a score is
// not finite. Candidate i is ids[i], or first + i. `out` is the place of candidate 0 in crop 0, and
// a crop has `matrix` floats.
__attribute__((noinline)) inline void mend_scores(
    const Operands& operands, const CropList& crops, const float* bias, int64_t query,
    const int64_t* ids, int64_t first, int64_t count, int64_t matrix, float* out) {
  const FloatMode mode(FloatMode::kIeee);
  SweepJob job{};
  static_cast<Operands&>(job) = operands;
  double scratch[kCanonicalScratch], score;
  for (int64_t crop = 0; crop < crops.count; ++crop)
    for (int64_t i = 0; i < count; ++i) {
      float* to = out + crop * matrix + i;
      if (std::fabs(*to) <= FLT_MAX) continue;
      const Pair pair{query, ids ? ids[i] : first + i};
      canonical_scores(job, crops.widths[crop], &pair, 1, scratch, &score);
      *to = static_cast<float>((bias ? bias[pair.candidate] : 0.0) + score);
    }
}

}  // namespace
}  // namespace kgfast
