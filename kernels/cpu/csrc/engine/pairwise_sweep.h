// The forward of pairwise scores: the sweep's panels and tiles, every sum kept and written.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 7 arithmetic instructions and rsqrt14
// (3 micro-operations): 5 cycles on two ports; l1 3, l2 2 instructions. The Newton step of
// the square root is 2 of them. Packing and storing vanish beside a block of features.
//
// Crops: the sums run over blocks of 64 features from feature 0. Where a crop ends inside a block,
// total + sum is written and the sum goes on, so a crop's score has the bits of that crop alone.
#pragma once
#include "engine/canonical.h"
#include "engine/pack.h"
#include "engine/sweep.h"
#include "host/fpmode.h"
#include "host/scores.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

// True for scores by panels: rscf scores have blocks (indexed_rows.h), dot has product_scores.h.
template <class Score>
constexpr bool serves_panels() {
  return !Score::is_rscf && is_monotone<Score>;
}

// Writes the scores of Q queries of a tile with one panel. Returns 0 unless scores need mend_scores.
template <class Score, int Q>
inline uint32_t write_scores(const PanelJob& job, const PanelFacts& facts, int64_t position,
                             int64_t slot, int64_t features,
                             const V (&totals)[Q][Score::vectors]) {
  constexpr int W = Simd::W;
  uint32_t spoiled = 0;
  for (int a = 0; a < Q && position + a < job.sweep.num_queries; ++a) {
    const int64_t row = slot * job.sweep.query.count + job.sweep.query_ids[position + a];
    float* out = job.out + row * job.sweep.num_candidates + facts.first;
    for (int b = 0; b < Score::vectors && b * W < facts.valid; ++b) {
      const V distance = nan_if_tiny(Score::finish(totals[a][b]), features, &spoiled);
      const V score = Simd::sub(Simd::load(facts.bias + b * W), distance);
      if ((b + 1) * W <= facts.valid) {
        Simd::store(out + b * W, score);
        continue;
      }
      float lanes[W];
      Simd::store(lanes, score);
      std::memcpy(out + b * W, lanes, sizeof(float) * (facts.valid - b * W));
    }
  }
  return spoiled;
}

// Scores features [feature, feature + count) of Q queries; `feature` is a multiple of kSumBlock.
// Returns 0 unless scores need mend_scores.
template <class Score, int Q>
uint32_t score_tile(const PanelJob& job, const PanelFacts& facts, int64_t position,
                    int64_t feature, int64_t count, Worker& worker) {
  constexpr int L = lanes_of<Score>(), B = Score::vectors, P = Score::planes;
  constexpr int T = Score::tile_queries;
  const SweepJob& sweep = job.sweep;
  const int64_t end = feature + count;
  float* saved = worker.totals + position * L;
  const float* queries = sweep.packed_queries +
                         position / T * sweep.num_features * P * T + position % T;
  int64_t crop = 0;
  uint32_t spoiled = 0;
  while (job.crops.widths[crop] <= feature) ++crop;
  V totals[Q][B];
  for (int a = 0; a < Q; ++a)
    for (int b = 0; b < B; ++b)
      totals[a][b] = feature ? Simd::load(saved + a * L + b * Simd::W) : Simd::zero();
  for (int64_t block = feature; block < end; block += kSumBlock) {
    const int64_t block_end = std::min(block + kSumBlock, end);
    V sums[Q][B];
    for (auto& row : sums)
      for (V& sum : row) sum = Simd::zero();
    for (int64_t at = block; at < block_end;) {
      const int64_t stop = std::min(block_end, job.crops.widths[crop]);
      accumulate<Score, Q>(worker.panel + (at - feature) * P * L, queries + at * P * T, stop - at,
                           sums);
      at = stop;
      if (at < job.crops.widths[crop]) continue;
      V ended[Q][B];
      for (int a = 0; a < Q; ++a)
        for (int b = 0; b < B; ++b) ended[a][b] = Simd::add(totals[a][b], sums[a][b]);
      spoiled |= write_scores<Score, Q>(job, facts, position, job.crops.slots[crop++], at, ended);
    }
    for (int a = 0; a < Q; ++a)
      for (int b = 0; b < B; ++b) totals[a][b] = Simd::add(totals[a][b], sums[a][b]);
  }
  for (int a = 0; end < sweep.num_features && a < Q; ++a)
    for (int b = 0; b < B; ++b) Simd::store(saved + a * L + b * Simd::W, totals[a][b]);
  return spoiled;
}

// Scores one panel with the queries at positions [first, last) of the pass; `first` begins a tile.
template <class Score>
void score_panel(const PanelJob& job, int64_t panel, int64_t first, int64_t last, Worker& worker) {
  constexpr int T = Score::tile_queries;
  constexpr ScoreFacts shape = facts_of<Score>();
  const FloatMode ieee(FloatMode::kIeee);
  const PanelFacts facts = panel_facts(job.sweep, lanes_of<Score>(), panel);
  const int64_t features = job.sweep.num_features;
  for (int64_t feature = 0; feature < features; feature += job.sweep.features_per_block) {
    const int64_t count = std::min(job.sweep.features_per_block, features - feature);
    pack_panel(job.sweep, shape, facts.first, facts.valid, feature, count, worker);
    const FloatMode flush(FloatMode::kFlush);
    for (int64_t position = first; position < last; position += T) {
      const int64_t left = std::min<int64_t>(last - position, T);
      uint32_t spoiled = 0;
      if (left > T / 2) {
        spoiled = score_tile<Score, T>(job, facts, position, feature, count, worker);
      } else {
        for (int64_t a = 0; a < left; ++a)
          spoiled |= score_tile<Score, 1>(job, facts, position + a, feature, count, worker);
      }
      const int64_t pairs = job.sweep.num_candidates, *const ids = job.sweep.candidate_ids;
      for (int64_t a = 0; spoiled && a < left; ++a) {
        const int64_t query = job.sweep.query_ids[position + a];
        mend_scores(job.sweep, job.crops, job.sweep.bias, query, ids ? ids + facts.first : nullptr,
                    facts.first, facts.valid, job.sweep.query.count * pairs,
                    job.out + query * pairs + facts.first);
      }
    }
  }
}

}  // namespace
}  // namespace kgfast
