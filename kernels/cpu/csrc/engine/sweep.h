// The sweep: a panel of candidates in lanes against tiles of queries in registers.
//
// Cost model (rotate, AVX-512): 4 queries x 4 vectors of 16 candidates; per feature 8 vector loads
// and 8 broadcasts for 16 x 6 arithmetic instructions. Sums run over 64 features in registers and
// are then folded into totals, which keeps the error bound short and is where a tile is abandoned.
//
// `take` of Deciding (below) or Writing (pairwise_sweep.h) receives the totals of one query where a
// crop ends, so nested crops cost one sweep over the widest. Past its `limit` a query needs no more
// of a panel, in a crop and later crops.
#pragma once
#include <algorithm>
#include <cfloat>

#include "engine/pack.h"
#include "host/fpmode.h"
#include "host/job.h"
#include "scores/scores.h"

namespace kgfast {
namespace {

constexpr int64_t kSumBlock = 64;  // features per short accumulator
constexpr int64_t kFloatsAhead = 1024;   // floats that a lone query prefetches, for 0.6 of the time
constexpr int64_t kLongestPause = 15;  // panels

// Pauses in reading bytes before wider numbers, after panels of which bytes left much open.
inline void pause_bytes(bool was_worth_it, BytesPause& pause) {
  pause.length = was_worth_it ? 0 : std::min(2 * pause.length + 1, kLongestPause);
  pause.left = pause.length;
}

// Adds the terms of `count` features to sums[a][b]. `tile` points at query a = 0 of this sub-tile.
template <class Score, int Q>
inline void accumulate(const float* panel, const float* tile, int64_t count,
                       V (&sums)[Q][Score::vectors]) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, B = Score::vectors;
  constexpr int QP = Score::query_planes, stride = Score::tile_queries;
  for (int64_t k = 0; k < count; ++k) {
    V c[B][P], q[QP];
    if constexpr (Q == 1)  // a lone query reads panels of an index from memory
      for (int i = 0; i < P * L; i += 16) __builtin_prefetch(panel + k * P * L + kFloatsAhead + i);
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 3
      for (int p = 0; p < P; ++p) c[b][p] = Simd::load(panel + (k * P + p) * L + b * Simd::W);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a) {
#pragma GCC unroll 5
      for (int p = 0; p < QP; ++p) q[p] = Simd::set1(tile[(k * QP + p) * stride + a]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Score::add(sums[a][b], q, c[b]);
    }
  }
}

// Place of a block of features in a panel and a tile.
struct BlockPlace {
  const float *panel, *tile;                // at the first feature
  const float *panel_angles, *tile_angles;  // at the first feature, for a score with phases
  int shared_terms;                         // SweepJob::shared_terms

  template <class Score>
  BlockPlace at(int64_t k) const {
    return {panel + k * Score::planes * lanes_of<Score>(),
            tile + k * Score::query_planes * Score::tile_queries,
            Score::has_phase ? panel_angles + k : nullptr,
            Score::has_phase ? tile_angles + k : nullptr, shared_terms};
  }
};

// Accumulates with as many terms of sine and cosine as the angles of these features need.
template <class Score, int Q>
inline void accumulate_turned(const BlockPlace& place, int64_t count,
                              V (&sums)[Q][Score::vectors]) {
  if (place.shared_terms == 1)
    return accumulate<Within<Score, Angles::near>, Q>(place.panel, place.tile, count, sums);
  if (place.shared_terms == 2)
    return accumulate<Within<Score, Angles::shared>, Q>(place.panel, place.tile, count, sums);
  V most = Simd::zero();  // skips a NaN (inf * 0), whose sums are NaN anyway
  for (int64_t k = 0; k < count; k += Simd::W)
    most = Simd::max(
        Simd::mul(Simd::load(place.panel_angles + k), Simd::load(place.tile_angles + k)), most);
  if (!Simd::less(Simd::set1(kSmallAngle), most))
    accumulate<Within<Score, Angles::small>, Q>(place.panel, place.tile, count, sums);
  else if (!Simd::less(Simd::set1(kHalfTurn), most))
    accumulate<Within<Score, Angles::half_turn>, Q>(place.panel, place.tile, count, sums);
  else
    accumulate<Within<Score, Angles::any>, Q>(place.panel, place.tile, count, sums);
}

// True if every lane of a query is finite and past the query's limit.
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

// Adds `count` features to short sums.
template <class Score, int Q>
__attribute__((noinline)) void add_features(const BlockPlace& place, int64_t count,
                                            V (&sums)[Q][Score::vectors]) {
  if constexpr (Score::has_phase)
    accumulate_turned<Score, Q>(place, count, sums);
  else
    accumulate<Score, Q>(place.panel, place.tile, count, sums);
}

// Adds short sums to totals.
template <class Score, int Q>
inline void fold(const V (&sums)[Q][Score::vectors], V (&totals)[Q][Score::vectors]) {
  for (int a = 0; a < Q; ++a)
    for (int b = 0; b < Score::vectors; ++b) totals[a][b] = Simd::add(totals[a][b], sums[a][b]);
}

// Adds `count` features to totals, in blocks; false when the tile was abandoned. Not inlined:
// within its caller, gcc 12 keeps a quarter of the sums of l1 in memory, at 1.1 times the time.
template <class Score, int Q>
__attribute__((noinline)) bool run_tile(const BlockPlace& place, int64_t count,
                                        const float* limits, V (&totals)[Q][Score::vectors]) {
  constexpr int B = Score::vectors;
  for (int64_t k = 0; k < count; k += kSumBlock) {
    const int64_t width = count - k < kSumBlock ? count - k : kSumBlock;
    V sums[Q][B];
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Simd::zero();
    const BlockPlace here = place.at<Score>(k);
    if constexpr (Score::has_phase)
      accumulate_turned<Score, Q>(here, width, sums);
    else
      accumulate<Score, Q>(here.panel, here.tile, width, sums);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) totals[a][b] = Simd::add(totals[a][b], sums[a][b]);
    if (is_monotone<Score> && k + width < count && all_past<Score, Q>(totals, limits)) return false;
  }
  return true;
}

// Facts of a panel, shared by all its tiles.
struct PanelFacts {
  int64_t first;  // position of lane 0 among the candidates
  int valid;      // lanes that hold a candidate
  float norm;     // a bound on the norms of all features
  alignas(64) float bias[kMaxLanes];
};

// Returns a limit on distances in units of totals: squares for l2. A NaN stays a NaN.
template <class Score>
inline float total_of(float limit) {
  if (Score::terms != Terms::squares) return limit;
  return limit < 0.0f ? -1.0f : limit * limit * (1.0f + 0x1p-20f);
}

__attribute__((noinline)) PanelFacts panel_facts(const SweepJob& job, int L, int64_t panel) {
  PanelFacts facts;
  facts.first = panel * L;
  const int64_t left = job.num_candidates - facts.first;
  facts.valid = static_cast<int>(left < L ? left : L);
  facts.norm = 0.0f;
  std::fill_n(facts.bias, L, 0.0f);
  for (int lane = 0; job.bias && lane < facts.valid; ++lane)
    facts.bias[lane] = job.bias[candidate_of(job, facts.first + lane)];
  return facts;
}

// Returns the place of the first feature of a panel, and of a query in its tile.
template <class Score>
BlockPlace place_of(const SweepJob& job, int64_t position, const Worker& worker) {
  constexpr int T = Score::tile_queries;
  const int64_t tile = position / T;
  return {worker.panel,
          job.packed_queries + tile * job.num_features * Score::query_planes * T + position % T,
          worker.panel_angles, job.tile_angles + tile * job.angle_stride, job.shared_terms};
}

// Returns the distances of a query and one vector of a panel, by a shared turn and by square roots
// that round once.
template <class Score, Angles range>
V refined(const BlockPlace& place, int vector, int64_t features) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, QP = Score::query_planes;
  V total = Simd::zero();
  for (int64_t first = 0; first < features; first += kSumBlock) {
    const int64_t end = std::min(first + kSumBlock, features);
    V sum = Simd::zero();
    for (int64_t k = first; k < end; ++k) {
      V c[P], q[QP];
      for (int p = 0; p < P; ++p)
        c[p] = Simd::load(place.panel + (k * P + p) * L + vector * Simd::W);
      for (int p = 0; p < QP; ++p)
        q[p] = Simd::set1(place.tile[(k * QP + p) * Score::tile_queries]);
      sum = Simd::add(sum, Simd::sqrt(Score::template square_of<range>(q, c)));
    }
    total = Simd::add(total, sum);
  }
  return total;
}

// Makes intervals of totals, with the bound of docs/explanation/exactness.md.
template <class S>
struct Deciding {
  using Score = S;
  using Job = SweepJob;

  // Past tau + 1.25 err a distance's interval lies past the limit, with tau = limit + bias. The
  // bias here is the largest one, and the error that of the widest crop.
  static float limit(const SweepJob& job, int64_t crop, int64_t position, float norm) {
    const AbsoluteError& error = job.errors[(job.num_crops - 1) * job.num_queries + position];
    const float tau = limit_of(job, crop * job.num_queries + position) +
                      (job.bias ? job.bias_max : 0.0f);
    const float rel = job.crops[job.num_crops - 1].rel;
    const float reach = tau + 1.25f * (rel * std::fabs(tau) + (error.base + error.slope * norm));
    return total_of<Score>(std::isnan(reach) ? INFINITY : reach);
  }

  static void take(const SweepJob& job, const PanelFacts& facts, int64_t crop, const V* totals,
                   int64_t position, float past, Worker& worker) {
    // To count is as cheap as to ask first, and at places spread evenly the answer is mostly no.
    const bool asks = is_monotone<Score> && job.question != Question::count;
    if (asks && lanes_past<Score>(totals, past)) return;
    const AbsoluteError& error = job.errors[crop * job.num_queries + position];
    const V rel = Simd::set1(job.crops[crop].rel);
    const V absolute = Simd::set1(error.base + error.slope * worker.norms[crop]);
    Intervals costs;
    costs.first = facts.first;
    costs.valid = first_lanes(facts.valid);
#pragma GCC unroll 4
    for (int b = 0; b < Score::vectors; ++b)
      put(facts, b, Score::finish(totals[b]), rel, absolute, &costs);
    if constexpr (Score::has_phase && Simd::sqrt_error > 0x1p-20)
      if (job.shared_terms) refine(job, facts, position, absolute, worker, &costs);
    kgfast::take(job, crop, position, costs, worker);
  }

 private:
  using Intervals = Costs<Score::vectors>;

  static void put(const PanelFacts& facts, int b, V distance, V rel, V absolute, Intervals* costs) {
    const V off = Simd::fma(rel, Simd::abs(distance), absolute);
    const V cost = Simd::sub(distance, Simd::load(facts.bias + b * Simd::W));
    costs->low[b] = Simd::sub(cost, off);
    costs->high[b] = Simd::add(cost, off);
  }

  // Narrows the intervals of vectors with open lanes. Approximate square roots leave most of them
  // open; this takes a third of the time of a canonical score.
  static void refine(const SweepJob& job, const PanelFacts& facts, int64_t position, V absolute,
                     const Worker& worker, Intervals* costs) {
    const bool records = job.question == Question::record;
    const uint64_t open = records ? costs->valid : open_lanes(job, position, *costs);
    if (__builtin_expect(open == 0, 1)) return;
    const BlockPlace place = place_of<Score>(job, position, worker);
    for (int b = 0; b < Score::vectors; ++b)
      if (open >> b * Simd::W & first_lanes(Simd::W))
        put(facts, b,
            job.shared_terms == 1 ? refined<Score, Angles::near>(place, b, job.num_features)
                                  : refined<Score, Angles::shared>(place, b, job.num_features),
            Simd::set1(job.refined_rel), absolute, costs);
  }
};

// Finds limits of Q queries from `position` on, for crops from `crop` on; the last query repeats.
template <class Consumer, int Q>
inline void find_limits(const typename Consumer::Job& job, const PanelFacts& facts, int64_t crop,
                        int64_t position, float* limits) {
  for (int a = 0; is_monotone<typename Consumer::Score> && a < Q; ++a) {
    const int64_t query = position + a < job.num_queries ? position + a : job.num_queries - 1;
    limits[a] = Consumer::limit(job, crop, query, facts.norm);
  }
}

// Sweeps Q queries from `position` on, and decides every crop where the crop ends, until no later
// crop needs anything of this panel. Sums end at multiples of kSumBlock: a crop that ends between
// is summed apart, and has the totals of that crop alone.
template <class Consumer, int Q>
void sweep_tile(const typename Consumer::Job& job, const PanelFacts& facts, int64_t position,
                Worker& worker) {
  using Score = typename Consumer::Score;
  constexpr int B = Score::vectors;
  const int64_t end = job.num_features;
  const BlockPlace place = place_of<Score>(job, position, worker);
  V totals[Q][B];
  for (auto& row : totals)
    for (V& total : row) total = Simd::zero();
  float limits[Q];
  int64_t crop = 0;
  const auto take = [&](const V (&sums)[Q][B]) {
    for (int a = 0; a < Q && position + a < job.num_queries; ++a)
      Consumer::take(job, facts, crop, sums[a], position + a, limits[a], worker);
    if (++crop < job.num_crops) find_limits<Consumer, Q>(job, facts, crop, position, limits);
  };
  find_limits<Consumer, Q>(job, facts, crop, position, limits);
  for (int64_t at = 0; crop < job.num_crops;) {
    const int64_t crop_end = job.crops[crop].end;
    if (at == crop_end) {
      take(totals);
      continue;
    }
    if (is_monotone<Score> && at && all_past<Score, Q>(totals, limits)) return;
    int64_t stop = crop_end == end ? end : crop_end / kSumBlock * kSumBlock;
    if (at < stop) {  // whole blocks
      if (!run_tile<Score, Q>(place.at<Score>(at), stop - at, limits, totals)) return;
      at = stop;
      continue;
    }
    stop = at + kSumBlock < end ? at + kSumBlock : end;
    V sums[Q][B];
    for (auto& row : sums)
      for (V& sum : row) sum = Simd::zero();
    while (at < stop) {
      const int64_t next = job.crops[crop].end < stop ? job.crops[crop].end : stop;
      add_features<Score, Q>(place.at<Score>(at), next - at, sums);
      at = next;
      if (at == stop) break;
      V ended[Q][B];
      std::copy(&totals[0][0], &totals[0][0] + Q * B, &ended[0][0]);
      fold<Score, Q>(sums, ended);
      take(ended);
    }
    fold<Score, Q>(sums, totals);
  }
}

// Finds the norms of a panel's candidates in all crops.
[[maybe_unused]] __attribute__((noinline)) void find_norms(const SweepJob& job,
                                                           const ScoreFacts& facts,
                                                           Worker& worker) {
  alignas(64) float lane_norm[kMaxLanes] = {};
  const int64_t floats = facts.planes * facts.lanes;
  for (int64_t crop = 0, at = 0; crop < job.num_crops; at = job.crops[crop++].end) {
    const int64_t count = job.crops[crop].end - at;
    accumulate_norm(job.norm, worker.panel + at * floats, count * facts.planes, facts.lanes,
                    lane_norm);
    worker.norms[crop] = panel_norm(job, facts.lanes, lane_norm);
  }
}

// Packs a panel for later calls, and returns the bound on its norms; the job has one crop.
template <class Score>
float pack_whole_panel(const SweepJob& job, int64_t panel, Worker& worker) {
  constexpr ScoreFacts shape = facts_of<Score>();
  const FloatMode mode(FloatMode::kIeee);
  const PanelFacts facts = panel_facts(job, shape.lanes, panel);
  float norm = 0.0f;
  worker.norms = &norm;
  pack_panel(job, shape, facts.first, facts.valid, worker);
  if (job.norm != Norm::none) find_norms(job, shape, worker);
  return norm;
}

template <class Consumer>
void sweep_panel(const typename Consumer::Job& job, int64_t panel, Worker& worker) {
  using Score = typename Consumer::Score;
  constexpr ScoreFacts shape = facts_of<Score>();
  constexpr int T = Score::tile_queries;
  const FloatMode mode(FloatMode::kIeee);
  PanelFacts facts = panel_facts(job, shape.lanes, panel);
  if (job.packed.panels)
    worker.panel = job.packed.panels + panel * job.packed.features * shape.planes * shape.lanes;
  else
    pack_panel(job, shape, facts.first, facts.valid, worker);
  if (job.norm == Norm::none)
    std::fill_n(worker.norms, job.num_crops,
                shape.has_phase && job.shared_terms ? norm_of_powers(job, shape, worker) : 0.0f);
  else if (job.packed.norms && job.num_crops == 1 && job.num_features == job.packed.features)
    worker.norms[0] = job.packed.norms[panel];
  else
    find_norms(job, shape, worker);
  facts.norm = worker.norms[job.num_crops - 1];
  const FloatMode flush(FloatMode::kFlush);
  for (int64_t position = 0; position < job.num_queries; position += T) {
    const int64_t left = job.num_queries - position;
    if (left > T / 2) {
      sweep_tile<Consumer, T>(job, facts, position, worker);
    } else {
      for (int64_t a = 0; a < left; ++a)
        sweep_tile<Consumer, 1>(job, facts, position + a, worker);
    }
  }
}

}  // namespace
}  // namespace kgfast
