// The sweep: a panel of candidates in lanes against tiles of queries in registers.
//
// Cost model (rotate, AVX-512): 4 queries x 4 vectors of 16 candidates; per feature 8 vector loads
// and 8 broadcasts for 16 x 6 arithmetic instructions. Sums run over 64 features in registers and
// are then folded into totals, which keeps the error bound short and is where a tile is abandoned.
// A panel is packed once and stays in the second-level cache while every tile sweeps it.
//
// What becomes of the totals is a consumer's: `limit` is a total past which a query wants no more of
// a panel, `take` receives the totals of one query (counting.h, topk_sweep.h).
#pragma once
#include <cfloat>

#include "fpmode.h"
#include "job.h"
#include "pack.h"
#include "scores.h"

namespace kgfast {
namespace {

constexpr int64_t kSumBlock = 64;  // features per short accumulator

// sums[a][b] += the terms of `count` features. `tile` points at query a = 0 of this sub-tile.
template <class Score, int Q>
inline void accumulate(const float* panel, const float* tile, int64_t count,
                       V (&sums)[Q][Score::vectors]) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, B = Score::vectors;
  constexpr int stride = Score::tile_queries;
  for (int64_t k = 0; k < count; ++k) {
    V c[B][P], q[P];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) c[b][p] = Simd::load(panel + (k * P + p) * L + b * Simd::W);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) q[p] = Simd::set1(tile[(k * P + p) * stride + a]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Score::add(sums[a][b], q, c[b]);
    }
  }
}

// Whether every lane of a query is finite and past the query's limit.
template <class Score>
inline bool lanes_past(const V* totals, float past) {
  const V huge = Simd::set1(FLT_MAX), limit = Simd::set1(past);
  constexpr uint32_t full = (1u << Simd::W) - 1;
  for (int b = 0; b < Score::vectors; ++b) {
    // Monotone sums are not negative, so "not above FLT_MAX and not NaN" is total < inf.
    if ((Simd::less(limit, totals[b]) & ~Simd::less(huge, totals[b])) != full) return false;
  }
  return true;
}

template <class Score, int Q>
inline bool all_past(const V (&totals)[Q][Score::vectors], const float* limits) {
  for (int a = 0; a < Q; ++a)
    if (!lanes_past<Score>(totals[a], limits[a])) return false;
  return true;
}

// Adds `count` features to totals; false when the tile was abandoned.
template <class Score, int Q>
inline bool run_tile(const float* panel, const float* tile, int64_t count, const float* limits,
                     V (&totals)[Q][Score::vectors]) {
  constexpr int B = Score::vectors, P = Score::planes;
  for (int64_t k = 0; k < count; k += kSumBlock) {
    const int64_t width = count - k < kSumBlock ? count - k : kSumBlock;
    V sums[Q][B];
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Simd::zero();
    accumulate<Score, Q>(panel + k * P * lanes_of<Score>(), tile + k * P * Score::tile_queries,
                         width, sums);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) totals[a][b] = Simd::add(totals[a][b], sums[a][b]);
    if (Score::monotone && k + width < count && all_past<Score, Q>(totals, limits)) return false;
  }
  return true;
}

// What is the same for every tile of a panel.
struct PanelFacts {
  int64_t first;  // position of lane 0 among the candidates
  int valid;      // lanes that hold a candidate
  float norm;
  alignas(64) float bias[kMaxLanes];
};

// A limit on distances in the units of totals, which are squares for l2; a NaN stays one.
template <class Score>
inline float total_of(float limit) {
  if (Score::id != ScoreId::l2) return limit;
  return limit < 0.0f ? -1.0f : limit * limit * (1.0f + 0x1p-20f);
}

template <class Score>
PanelFacts panel_facts(const SweepJob& job, int64_t panel) {
  constexpr int L = lanes_of<Score>();
  PanelFacts facts;
  facts.first = panel * L;
  const int64_t left = job.num_candidates - facts.first;
  facts.valid = static_cast<int>(left < L ? left : L);
  facts.norm = 0.0f;
  for (int lane = 0; lane < L; ++lane) {
    const bool used = job.bias && lane < facts.valid;
    facts.bias[lane] = used ? job.bias[candidate_of(job, facts.first + lane)] : 0.0f;
  }
  return facts;
}

// Sub-tile of Q queries from `position` on: sweep one block of features, decide after the last.
template <class Consumer, int Q>
void sweep_tile(const typename Consumer::Job& job, const PanelFacts& facts, int64_t position,
                int64_t feature, int64_t count, const float* limits,
                typename Consumer::Keeper& worker) {
  using Score = typename Consumer::Score;
  constexpr int L = lanes_of<Score>(), B = Score::vectors, T = Score::tile_queries;
  const bool first_block = feature == 0, last_block = feature + count == job.num_features;
  const int64_t tile = position / T;
  if (!first_block && !worker.alive[tile]) return;
  float* saved = first_block && last_block ? nullptr : worker.totals + position * L;
  V totals[Q][B];
  for (int a = 0; a < Q; ++a)
    for (int b = 0; b < B; ++b)
      totals[a][b] = first_block ? Simd::zero() : Simd::load(saved + a * L + b * Simd::W);
  const float* queries = job.packed_queries +
                         (tile * job.num_features + feature) * Score::planes * T + position % T;
  const bool alive = run_tile<Score, Q>(worker.panel, queries, count, limits, totals);
  if (!last_block) {
    for (int a = 0; a < Q; ++a)
      for (int b = 0; b < B; ++b) Simd::store(saved + a * L + b * Simd::W, totals[a][b]);
    worker.alive[tile] = Q == T ? alive : true;  // a lone query is decided at its end
    return;
  }
  if (!alive) return;
  for (int a = 0; a < Q && position + a < job.num_queries; ++a)
    Consumer::take(job, facts, totals[a], position + a, limits[a], worker);
}

template <class Consumer>
void sweep_block(const typename Consumer::Job& job, const PanelFacts& facts, int64_t feature,
                 int64_t count, typename Consumer::Keeper& worker) {
  using Score = typename Consumer::Score;
  constexpr int T = Score::tile_queries;
  const bool whole = count == job.num_features;
  const FloatMode mode(FloatMode::kFlush);
  for (int64_t position = 0; position < job.num_queries; position += T) {
    float limits[T];
    for (int a = 0; Score::monotone && a < T; ++a) {
      const bool known = whole || !job.norm;  // a norm is complete only after the last block
      const int64_t query = position + a < job.num_queries ? position + a : job.num_queries - 1;
      limits[a] = known ? Consumer::limit(job, query, facts.norm) : FLT_MAX;
    }
    const int64_t left = job.num_queries - position;
    if (left > T / 2) {
      sweep_tile<Consumer, T>(job, facts, position, feature, count, limits, worker);
    } else {
      for (int64_t a = 0; a < left; ++a)
        sweep_tile<Consumer, 1>(job, facts, position + a, feature, count, limits + a, worker);
    }
  }
}

template <class Consumer>
void sweep_panel(const typename Consumer::Job& job, int64_t panel,
                 typename Consumer::Keeper& worker) {
  using Score = typename Consumer::Score;
  const FloatMode mode(FloatMode::kIeee);
  PanelFacts facts = panel_facts<Score>(job, panel);
  alignas(64) float lane_norm[kMaxLanes] = {};
  for (int64_t feature = 0; feature < job.num_features; feature += job.features_per_block) {
    const int64_t left = job.num_features - feature;
    const int64_t count = left < job.features_per_block ? left : job.features_per_block;
    pack_panel<Score>(job, facts.first, facts.valid, feature, count, worker, lane_norm);
    if (feature + count == job.num_features) facts.norm = panel_norm<Score>(job, lane_norm);
    sweep_block<Consumer>(job, facts, feature, count, worker);
  }
}

}  // namespace
}  // namespace kgfast
