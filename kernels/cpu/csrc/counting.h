// Ranking's consumer of the sweep: pairs that the bound decides are counted, the others collected.
#pragma once
#include "canonical.h"
#include "sweep.h"

namespace kgfast {
namespace {

// A total above this, in the units of `totals`, cannot reach any target of query `position`.
template <class Score>
inline float abandon_limit(const SweepJob& job, int64_t position, float norm) {
  float limit = -FLT_MAX;
  for (int64_t i = job.first_threshold[position]; i < job.first_threshold[position + 1]; ++i) {
    const Threshold& t = job.thresholds[i];
    const float tau = t.minus_target + (job.bias ? job.bias_max : 0.0f);
    const float reach = tau + 1.25f * (job.rel * std::fabs(tau) + (t.base + t.slope * norm));
    if (!(reach <= limit)) limit = reach;  // keeps a NaN, which no total is above
  }
  return total_of<Score>(limit);
}

// Counts the pairs that the bound decides for one target and appends the others to the band.
template <class Score>
inline void classify(const SweepJob& job, const PanelFacts& facts, const V* distances,
                     const Threshold& t, Worker& worker) {
  const V minus_target = Simd::set1(t.minus_target), rel = Simd::set1(job.rel);
  const V absolute = Simd::set1(t.base + t.slope * facts.norm), huge = Simd::set1(FLT_MAX);
  int64_t greater = 0;
  for (int b = 0; b < Score::vectors; ++b) {
    const int first_lane = b * Simd::W;
    if (first_lane >= facts.valid) break;
    const int left = facts.valid - first_lane;
    const uint32_t mask = left >= Simd::W ? (1u << Simd::W) - 1 : (1u << left) - 1;
    const V tau = Simd::add(Simd::load(facts.bias + first_lane), minus_target);
    const V err = Simd::fma(rel, Simd::abs(tau), absolute);
    const uint32_t beats = Simd::less(distances[b], Simd::sub(tau, err)) &
                           Simd::less(Simd::sub(Simd::zero(), huge), distances[b]);
    const uint32_t loses = Simd::less(Simd::add(tau, err), distances[b]) &
                           Simd::less(distances[b], huge);
    greater += __builtin_popcount(beats & mask);
    for (uint32_t open = mask & ~(beats | loses); open; open &= open - 1) {
      const int lane = first_lane + __builtin_ctz(open);
      worker.band[worker.band_size++] = {t.row, candidate_of(job, facts.first + lane)};
    }
  }
  worker.greater[t.row] += greater;
}

// What ranking does with the totals of query `position`: compares them with all its targets.
template <class S>
struct Counting {
  using Score = S;
  using Job = SweepJob;
  using Keeper = Worker;
  static float limit(const SweepJob& job, int64_t position, float norm) {
    return abandon_limit<Score>(job, position, norm);
  }
  static void take(const SweepJob& job, const PanelFacts& facts, const V* totals, int64_t position,
                   float /*limit*/, Worker& worker) {
    V distances[Score::vectors];
    for (int b = 0; b < Score::vectors; ++b) distances[b] = Score::finish(totals[b]);
    for (int64_t i = job.first_threshold[position]; i < job.first_threshold[position + 1]; ++i) {
      if (worker.band_size + kMaxLanes > worker.band_capacity) decide_band<Score>(job, worker);
      classify<Score>(job, facts, distances, job.thresholds[i], worker);
    }
  }
};

}  // namespace
}  // namespace kgfast
