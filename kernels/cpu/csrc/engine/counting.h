// Ranking's consumer of the sweep: counts pairs that the bound decides, and collects the others.
#pragma once
#include "engine/canonical.h"
#include "engine/sweep.h"

namespace kgfast {
namespace {

// Counts the pairs that the bound decides for one target and appends the others to the band.
template <class Score>
inline void classify(const SweepJob& job, const PanelFacts& facts, int64_t crop,
                     const V* distances, const Threshold& t, Worker& worker) {
  const V minus_target = Simd::set1(t.minus_target), rel = Simd::set1(job.crops[crop].rel);
  const V absolute = Simd::set1(t.base + t.slope * worker.norms[crop]);
  const V huge = Simd::set1(FLT_MAX);
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
      worker.band[worker.band_size++] = {t.slot, candidate_of(job, facts.first + lane)};
    }
  }
  worker.greater[t.slot] += greater;
}

// Consumer of ranking: compares the totals of query `position` in a crop with the query's targets.
template <class S>
struct Counting {
  using Score = S;
  using Job = SweepJob;
  using Keeper = Worker;
  static float limit(const SweepJob& job, int64_t crop, int64_t position, float norm) {
    const Reach& farthest = job.reaches[crop * job.num_queries + position];
    return total_of<Score>(farthest.reach + farthest.slope * norm);
  }
  static void take(const SweepJob& job, const PanelFacts& facts, int64_t crop, const V* totals,
                   int64_t position, float /*limit*/, Worker& worker) {
    V distances[Score::vectors];
    for (int b = 0; b < Score::vectors; ++b) distances[b] = Score::finish(totals[b]);
    const int64_t* first = job.first_threshold + crop * job.num_queries + position;
    for (int64_t i = first[0]; i < first[1]; ++i) {
      if (worker.band_size + kMaxLanes > worker.band_capacity) rescore_band(job, worker);
      classify<Score>(job, facts, crop, distances, job.thresholds[i], worker);
    }
  }
};

}  // namespace
}  // namespace kgfast
