// The consumer of pairwise scores: keeps every total of the sweep as a score.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 7 arithmetic instructions, of which the
// Newton step of the square root is 2, and rsqrt14 (3 micro-operations): 5 cycles on two ports.
#pragma once
#include "engine/canonical.h"
#include "engine/sweep.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

template <class S>
struct Writing {
  using Score = S;
  using Job = PanelJob;
  static float limit(const PanelJob&, int64_t, int64_t, float) { return FLT_MAX; }

  static void take(const PanelJob& job, const PanelFacts& facts, int64_t crop, const V* totals,
                   int64_t position, float /*limit*/, Worker& /*worker*/) {
    constexpr int W = Simd::W;
    const int64_t query = job.query_ids[position], pairs = job.num_candidates;
    float* const out = job.out + (crop * job.query.count + query) * pairs + facts.first;
    uint32_t spoiled = 0;
    for (int b = 0; b < Score::vectors && b * W < facts.valid; ++b) {
      const V distance = nan_if_tiny(Score::finish(totals[b]), job.crops[crop].end, &spoiled);
      const V score = Simd::sub(Simd::load(facts.bias + b * W), distance);
      store_lanes(out + b * W, score, facts.valid - b * W);
    }
    if (!spoiled) return;
    const int64_t* const ids = job.candidate_ids ? job.candidate_ids + facts.first : nullptr;
    mend_scores(job, {&job.crops[crop].end, 1}, job.bias, query, ids, facts.first, facts.valid, 0,
                out);
  }
};

}  // namespace
}  // namespace kgfast
