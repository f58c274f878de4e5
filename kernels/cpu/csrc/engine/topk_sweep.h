// Top-k's consumer of the sweep: one comparison with the query's limit, then keep_survivors.
//
// Cost model: two comparisons a vector of finished totals; survivors, about k ln(N / k) a query,
// cost some 50 ns each (topk_survivors.cpp).
#pragma once
#include "engine/sweep.h"
#include "host/topk.h"

namespace kgfast {
namespace {

template <class S>
struct Keeping {
  using Score = S;
  using Job = TopkJob;
  using Keeper = TopkWorker;

  static float limit_of(const TopkJob& job, int64_t position) {
    float limit;
    __atomic_load(job.limits + position, &limit, __ATOMIC_RELAXED);
    return limit;
  }

  // With tau = limit + bias, a distance past tau + err loses: docs/explanation/exactness.md, with
  // the limit in place of the target's cost. The bias here is the largest one.
  static float limit(const TopkJob& job, int64_t /*crop*/, int64_t position, float norm) {
    const float tau = limit_of(job, position) + (job.bias ? job.bias_max : 0.0f);
    const float absolute = job.base[position] + job.slope[position] * norm;
    return total_of<Score>(tau + 1.25f * (job.crops->rel * std::fabs(tau) + absolute));
  }

  static void take(const TopkJob& job, const PanelFacts& facts, int64_t /*crop*/, const V* totals,
                   int64_t position, float past, TopkWorker& worker) {
    if (is_monotone<Score> && lanes_past<Score>(totals, past)) return;
    V distances[Score::vectors];
    for (int b = 0; b < Score::vectors; ++b) distances[b] = Score::finish(totals[b]);
    const uint64_t open = undecided(job, facts, distances, position);
    if (!open) return;
    float lanes[lanes_of<Score>()];
    for (int b = 0; b < Score::vectors; ++b) Simd::store(lanes + b * Simd::W, distances[b]);
    const double absolute =
        job.base[position] + static_cast<double>(job.slope[position]) * facts.norm;
    keep_survivors(job, position, facts.first, open, lanes, absolute, worker);
  }

  // Returns the lanes that are not certainly worse than the k best so far.
  static uint64_t undecided(const TopkJob& job, const PanelFacts& facts, const V* distances,
                            int64_t position) {
    const float best = limit_of(job, position);
    const float absolute = job.base[position] + job.slope[position] * facts.norm;
    const V huge = Simd::set1(FLT_MAX), rel = Simd::set1(job.crops->rel);
    V reach = Simd::set1(best + (job.crops->rel * std::fabs(best) + absolute));
    uint64_t lost = 0;
    for (int b = 0; b < Score::vectors; ++b) {
      if (job.bias) {
        const V tau = Simd::add(Simd::load(facts.bias + b * Simd::W), Simd::set1(best));
        reach = Simd::add(tau, Simd::fma(rel, Simd::abs(tau), Simd::set1(absolute)));
      }
      const uint64_t loses =
          Simd::less(reach, distances[b]) & Simd::less(distances[b], huge);
      lost |= loses << (b * Simd::W);
    }
    const uint64_t valid = facts.valid == 64 ? ~uint64_t{0} : (uint64_t{1} << facts.valid) - 1;
    return valid & ~lost;
  }
};

}  // namespace
}  // namespace kgfast
