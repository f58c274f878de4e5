// Decides pairs that a tier of distances leaves open: by float32 distances, row by row, under the
// float32 sweep's bound. Pairs that stay open go to the band, for canonical scores.
//
// Cost model: the float32 sweep's instructions for each 16 features of a pair, whose operands come
// from memory, and 4 additions of lanes. Four candidates share the loads of a query. A term passes
// at most 64 additions of its lane, the folds of lanes and 4 levels of their tree, which are no
// more than the sweep's steps (docs/explanation/exactness.md).
#pragma once
#include <algorithm>
#include <cfloat>

#include "engine/pack.h"
#include "host/gather.h"
#include "scores/scores.h"

namespace kgfast {
namespace {

constexpr int64_t kGatherTerms = 64;                    // terms of one lane before they are folded
constexpr int kGatherVectors = kGatherLanes / Simd::W;  // vectors of float32
using LaneMasks = uint32_t[kGatherVectors];             // bits of lanes
constexpr uint32_t kAllLanes = (1u << Simd::W) - 1;

// Facts of a panel, shared by all its tiles.
struct GatherPlace {
  int64_t first;  // position of lane 0 among the candidates
  int64_t num_valid;
  LaneMasks valid;
  alignas(64) float bias[kGatherLanes];
};

inline GatherPlace gather_place(const SweepJob& job, int64_t panel) {
  GatherPlace place;
  place.first = panel * kGatherLanes;
  const int64_t left = job.num_candidates - place.first;
  place.num_valid = left < kGatherLanes ? left : kGatherLanes;
  for (int b = 0; b < kGatherVectors; ++b) {
    const int64_t lanes = left - b * Simd::W;
    place.valid[b] = lanes >= Simd::W ? kAllLanes : lanes > 0 ? (1u << lanes) - 1 : 0u;
  }
  for (int64_t lane = 0; lane < kGatherLanes; ++lane) {
    const bool used = job.bias && lane < left;
    place.bias[lane] = used ? job.bias[candidate_of(job, place.first + lane)] : 0.0f;
  }
  return place;
}

// Loads `count` numbers, and zeros into the other lanes.
inline V load_first(const float* from, int64_t count) {
  alignas(64) float lanes[Simd::W] = {};
  std::copy_n(from, count, lanes);
  return Simd::load(lanes);
}

// Adds up the lanes as a tree.
inline float add_lanes(V x) {
  alignas(64) float lanes[Simd::W];
  Simd::store(lanes, x);
  for (int half = Simd::W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// Rows of N candidates, and the next N rows, which are prefetched meanwhile: no prefetcher of the
// machine knows of them.
template <class Score, int N>
struct GatheredRows {
  const float* const* query;  // planes
  const float* const (*rows)[Score::planes];
  const float* const (*next)[Score::planes];

  // Adds the terms of `count` features from k on, at most W.
  template <bool whole>
  void add(int64_t k, int64_t count, V (&sums)[N]) const {
    constexpr int P = Score::planes;
    const auto load = [&](const float* from) {
      return whole ? Simd::load(from) : load_first(from, count);
    };
    V q[P];
    for (int p = 0; p < P; ++p) q[p] = load(query[p] + k);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V c[P];
      for (int p = 0; p < P; ++p) {
        c[p] = load(rows[n][p] + k);
        __builtin_prefetch(next[n][p] + k);
      }
      if (whole) {
        sums[n] = Score::add(sums[n], q, c);
      } else {  // lanes past the last feature have no term
        alignas(64) float terms[Simd::W];
        Simd::store(terms, Score::add(Simd::zero(), q, c));
        sums[n] = Simd::add(sums[n], load_first(terms, count));
      }
    }
  }

  // Computes the sums of all terms; for l2, of the squares.
  void sum(int64_t features, float* out) const {
    constexpr int64_t W = Simd::W, fold = kGatherTerms * W;
    V totals[N];
    for (V& total : totals) total = Simd::zero();
    for (int64_t from = 0; from < features; from += fold) {
      const int64_t end = features - from < fold ? features : from + fold;
      V sums[N];
      for (V& sum : sums) sum = Simd::zero();
      int64_t k = from;
      for (; k + W <= end; k += W) add<true>(k, W, sums);
      if (k < end) add<false>(k, end - k, sums);
      for (int n = 0; n < N; ++n) totals[n] = Simd::add(totals[n], sums[n]);
    }
    for (int n = 0; n < N; ++n) out[n] = add_lanes(totals[n]);
  }
};

// Finds the addresses of a candidate's planes in float32.
template <class Score>
inline void find_row(const SweepJob& sweep, const GatherPlace& place, int lane, Gathering& worker,
                     const float** planes) {
  constexpr int P = Score::planes;
  const int64_t id = candidate_of(sweep, place.first + lane);
  const bool direct = is_direct(sweep.rows);
  for (int p = 0; p < P; ++p) {
    float* row = worker.rows + (lane * P + p) * sweep.num_features;
    planes[p] = direct ? run_at<float>(sweep.rows.view, id, p, 0) : row;
    if (!direct && !worker.has_row[lane])
      load_floats(sweep.rows.view, id, p, 0, sweep.num_features, row);
  }
  worker.has_row[lane] = true;
}

template <class Score>
inline void find_query(const SweepJob& sweep, int64_t position, Gathering& worker,
                       const float** planes) {
  const View& view = sweep.query;
  const int64_t row = sweep.query_ids[position];
  for (int p = 0; p < Score::planes; ++p) {
    float* own = worker.query + p * sweep.num_features;
    const bool direct = view.dtype == DType::f32 && view.step == 1;
    planes[p] = direct ? run_at<float>(view, row, p, 0) : own;
    if (!direct) load_floats(view, row, p, 0, sweep.num_features, own);
  }
}

// Writes the sums of a query's `open` lanes to their places in `near`; false where none is open.
template <class Score>
__attribute__((noinline)) bool gather_lanes(const SweepJob& sweep, const GatherPlace& place,
                                            int64_t position, const LaneMasks& open,
                                            Gathering& worker, float* near) {
  constexpr int N = 4;
  uint32_t any = 0;
  for (const uint32_t lanes : open) any |= lanes;
  if (!any) return false;
  const int64_t features = sweep.num_features;
  const float *query[Score::planes], *rows[kGatherLanes + 2 * N][Score::planes];
  find_query<Score>(sweep, position, worker, query);
  int lanes[kGatherLanes], count = 0;
  for (int b = 0; b < kGatherVectors; ++b)
    for (uint32_t left = open[b]; left; left &= left - 1) {
      lanes[count] = b * Simd::W + __builtin_ctz(left);
      find_row<Score>(sweep, place, lanes[count], worker, rows[count]);
      ++count;
    }
  for (int n = 0; n < 2 * N; ++n)  // the last group is filled up
    std::copy_n(rows[0], Score::planes, rows[count + n]);
  for (int i = 0; i < count; i += N) {
    float sums[N];
    if (i + 1 == count)
      GatheredRows<Score, 1>{query, rows + i, rows + i + 1}.sum(features, sums);
    else
      GatheredRows<Score, N>{query, rows + i, rows + i + N}.sum(features, sums);
    for (int n = 0; n < N && i + n < count; ++n) near[lanes[i + n]] = sums[n];
  }
  worker.pairs.gathered += count;
  return true;
}

// Decides the chosen lanes for one target, as classify of counting.h does.
template <class Score>
inline void decide_near(const SweepJob& sweep, const GatherPlace& place, const Threshold& t,
                        const LaneMasks& chosen, const float* near, Gathering& gathering) {
  Worker& worker = *gathering.wide;
  const V minus_target = Simd::set1(t.minus_target), rel = Simd::set1(sweep.crops[0].rel);
  const V absolute = Simd::set1(t.base), huge = Simd::set1(FLT_MAX);
  if (worker.band_size + kGatherLanes > worker.band_capacity) gathering.rescore_band(sweep, worker);
  for (int b = 0; b < kGatherVectors; ++b) {
    if (!chosen[b]) continue;
    const V distance = Score::finish(Simd::load(near + b * Simd::W));
    const V tau = Simd::add(Simd::load(place.bias + b * Simd::W), minus_target);
    const V err = Simd::fma(rel, Simd::abs(tau), absolute);
    const uint32_t beats = Simd::less(distance, Simd::sub(tau, err)) &
                           Simd::less(Simd::sub(Simd::zero(), huge), distance);
    const uint32_t loses =
        Simd::less(Simd::add(tau, err), distance) & Simd::less(distance, huge);
    worker.greater[t.slot] += __builtin_popcount(beats & chosen[b]);
    for (uint32_t open = chosen[b] & ~(beats | loses); open; open &= open - 1) {
      const int lane = b * Simd::W + __builtin_ctz(open);
      worker.band[worker.band_size++] = {t.slot, candidate_of(sweep, place.first + lane)};
      gathering.pairs.canonical += 1;
    }
  }
}

// Decides the left pairs of a query by float32, where all others are past its targets.
template <class Score>
inline void decide_left(const SweepJob& sweep, const GatherPlace& place, int64_t position,
                        const LaneMasks& left, Gathering& worker) {
  const int64_t* span = sweep.first_threshold + position;
  alignas(64) float near[kGatherLanes] = {};
  if (!gather_lanes<Score>(sweep, place, position, left, worker, near)) return;
  for (int64_t i = span[0]; i < span[1]; ++i)
    decide_near<Score>(sweep, place, sweep.thresholds[i], left, near, worker);
}

}  // namespace
}  // namespace kgfast
