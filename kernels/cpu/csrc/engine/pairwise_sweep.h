// The consumer of pairwise scores: keeps every total of the sweep as a score.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 7 arithmetic instructions, of which the
// Newton step of the square root is 2, and rsqrt14 (3 micro-operations): 5 cycles on two ports.
#pragma once
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
    const int64_t first = query * pairs + facts.first;
    float* const out = job.out + job.slots[crop] * job.query.count * pairs + first;
    for (int b = 0; b < Score::vectors && b * W < facts.valid; ++b) {
      const V score = Simd::sub(Simd::load(facts.bias + b * W), Score::finish(totals[b]));
      float* const to = out + b * W;
      if ((b + 1) * W <= facts.valid) {
        Simd::store(to, score);
        continue;
      }
      float lanes[W];
      Simd::store(lanes, score);
      std::memcpy(to, lanes, sizeof(float) * (facts.valid - b * W));
    }
  }
};

}  // namespace
}  // namespace kgfast
