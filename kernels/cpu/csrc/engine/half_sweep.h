// The half-precision sweep: decides the pairs that its bound allows, and gathers the others.
//
// Cost model (rotate): per feature 4 queries x 4 vectors of 32 candidates x 6 instructions, as many
// as the float32 sweep has for 16. Four terms are added up in float16, four such sums as a tree,
// and then to float32 totals in the first-level cache: 7 instructions for each 16 terms of a
// vector. A tile is left once few of its pairs still matter, and these pairs are gathered.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "engine/gather.h"
#include "engine/half_pack.h"

namespace kgfast {
namespace {

constexpr int kHalfVectors = kHalfLanes / Half16::W;
using HalfSums = H[kHalfQueries][kHalfVectors];

struct HalfTotals {
  alignas(64) float of[kHalfQueries][kHalfLanes];
};

// Sums the terms of one chain of features.
template <class Half>
inline void sum_chain(const uint16_t* panel, const uint32_t* tile, HalfSums& sums) {
  constexpr int P = Half::Wide::planes;
#pragma GCC unroll 4
  for (int k = 0; k < kHalfChain; ++k) {
    H c[kHalfVectors][P];
#pragma GCC unroll 4
    for (int b = 0; b < kHalfVectors; ++b)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p)
        c[b][p] = Half16::load(panel + (k * P + p) * kHalfLanes + b * Half16::W);
#pragma GCC unroll 4
    for (int a = 0; a < kHalfQueries; ++a) {
      H q[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) q[p] = Half16::set_pair(tile[(k * P + p) * kHalfQueries + a]);
#pragma GCC unroll 4
      for (int b = 0; b < kHalfVectors; ++b)
        sums[a][b] = k ? Half::next(sums[a][b], q, c[b]) : Half::first(q, c[b]);
    }
  }
}

inline void add_held(HalfSums& sums, const uint16_t* held) {
#pragma GCC unroll 4
  for (int a = 0; a < kHalfQueries; ++a)
#pragma GCC unroll 4
    for (int b = 0; b < kHalfVectors; ++b)
      sums[a][b] = Half16::add(sums[a][b], Half16::load(held + a * kHalfLanes + b * Half16::W));
}

inline void hold(const HalfSums& sums, uint16_t* held) {
#pragma GCC unroll 4
  for (int a = 0; a < kHalfQueries; ++a)
#pragma GCC unroll 4
    for (int b = 0; b < kHalfVectors; ++b)
      Half16::store(held + a * kHalfLanes + b * Half16::W, sums[a][b]);
}

// Adds the terms of so many chains, at most kHalfTree, to the totals. Sums wait at the level of the
// tree that they have reached: the bits of i tell the levels with a waiting sum.
template <class Half>
inline void add_tree(const uint16_t* panel, const uint32_t* tile, int chains, HalfTotals& totals) {
  constexpr int P = Half::Wide::planes, size = kHalfQueries * kHalfLanes;
  alignas(64) uint16_t held[3][size];
  static_assert(kHalfTree <= 4, "levels");
  HalfSums sums;
  int level = 0;
  for (int i = 0; i < chains; ++i) {
    sum_chain<Half>(panel + i * kHalfChain * P * kHalfLanes,
                    tile + i * kHalfChain * P * kHalfQueries, sums);
    const bool is_last = i + 1 == chains;  // takes all waiting sums
    for (level = 0; is_last ? i >> level != 0 : i >> level & 1; ++level)
      if (i >> level & 1) add_held(sums, held[level]);
    hold(sums, held[level]);
  }
  for (int at = 0; at < size; at += Simd::W) {
    float* total = totals.of[0] + at;
    Simd::store(total, Simd::add(Simd::load(total), Half16::widen(held[level] + at)));
  }
}

template <class Half>
__attribute__((noinline)) void run_half_tile(const uint16_t* panel, const uint32_t* tile,
                                             int64_t count, HalfTotals& totals) {
  constexpr int P = Half::Wide::planes;
  constexpr int64_t width = kHalfChain * kHalfTree;
  for (int64_t k = 0; k < count; k += width) {
    const int64_t left = (count - k) / kHalfChain;
    add_tree<Half>(panel + k * P * kHalfLanes, tile + k * P * kHalfQueries,
                   static_cast<int>(left < kHalfTree ? left : kHalfTree), totals);
  }
}

// Finds lanes whose totals, of so many vectors, are not past all of a query's targets; counts them.
template <class Half>
inline int find_left(const HalfJob& job, const GatherPlace& place, int64_t position, int vectors,
                     const float* totals, const float* slack, LaneMasks& left) {
  const V reach = Simd::set1(job.reaches[position]), scale = Simd::set1(job.scale);
  int count = 0;
  for (int b = 0; b < vectors; ++b) {
    const V error = Simd::load(slack + b * Simd::W);
    V limit = Simd::mul(Simd::fma(Simd::set1(1.25f), error, reach), scale);
    if constexpr (Half::Wide::terms == Terms::squares) {
      limit = Simd::max(limit, Simd::zero());
      limit = Simd::mul(Simd::mul(limit, limit), Simd::set1(1.0f + 0x1p-20f));
    }
    left[b] = place.valid[b] & ~Simd::less(limit, Simd::load(totals + b * Simd::W));
    count += __builtin_popcount(left[b]);
  }
  return count;
}

// Finds pairs of one target that a query's totals leave open; adds pairs that beat it to `greater`.
template <class Half>
inline void find_open(const HalfJob& job, const GatherPlace& place, const Threshold& t,
                      float query_error, const float* totals, const float* slack, LaneMasks& open,
                      int64_t& greater) {
  const V minus_target = Simd::set1(t.minus_target), rel = Simd::set1(job.rel);
  const V absolute = Simd::set1(t.base + query_error), unscale = Simd::set1(job.unscale);
  for (int b = 0; b < kGatherVectors; ++b) {
    const V total = Simd::load(totals + b * Simd::W), error = Simd::load(slack + b * Simd::W);
    const V distance = Simd::mul(Half::Wide::finish(total), unscale);
    const V tau = Simd::add(Simd::load(place.bias + b * Simd::W), minus_target);
    const V err = Simd::add(Simd::fma(rel, Simd::abs(tau), absolute), error);
    const uint32_t beats = Simd::less(distance, Simd::sub(tau, err));
    const uint32_t loses = Simd::less(Simd::add(tau, err), distance);
    greater += __builtin_popcount(beats & place.valid[b]);
    open[b] = place.valid[b] & ~(beats | loses);
  }
}

// Decides a query's pairs by its totals, and gathers the open pairs.
template <class Half>
inline void decide_totals(const HalfJob& job, const GatherPlace& place, int64_t position,
                          const float* totals, HalfWorker& worker) {
  const int64_t* span = job.sweep->first_threshold + position;
  const auto find = [&](const Threshold& t, LaneMasks& open, int64_t& greater) {
    find_open<Half>(job, place, t, job.query_errors[position], totals, worker.slack, open,
                    greater);
  };
  LaneMasks all = {}, own;
  for (int64_t i = span[0]; i < span[1]; ++i) {
    const Threshold& t = job.sweep->thresholds[i];
    find(t, own, worker.wide->greater[t.slot]);
    for (int b = 0; b < kGatherVectors; ++b) all[b] |= own[b];
  }
  alignas(64) float near[kHalfLanes] = {};
  if (!gather_lanes<typename Half::Wide>(*job.sweep, place, position, all, worker, near)) return;
  for (int64_t i = span[0]; i < span[1]; ++i) {
    const Threshold& t = job.sweep->thresholds[i];
    int64_t counted = 0;
    if (span[1] - span[0] > 1) find(t, own, counted);
    decide_near<typename Half::Wide>(*job.sweep, place, t, own, near, worker);
  }
}

// Sweeps a panel with one tile of queries, and stops once gathering the remaining pairs costs no
// more than the next features.
template <class Half>
void sweep_half_tile(const HalfJob& job, const GatherPlace& place, int64_t tile,
                     HalfWorker& worker) {
  constexpr int P = Half::Wide::planes;
  constexpr int64_t pairs = kHalfQueries * kHalfLanes;
  constexpr HalfCosts costs = Half::costs;
  const int64_t first = tile * kHalfQueries, rest = job.sweep->num_queries - first;
  const int queries = static_cast<int>(rest < kHalfQueries ? rest : kHalfQueries);
  const uint32_t* packed = job.packed_queries + tile * job.features * P * kHalfQueries;
  const int64_t gathered = worker.pairs.gathered;
  HalfTotals totals = {};
  LaneMasks left[kHalfQueries];
  bool stops = false;
  int64_t k = 0;
  for (int64_t width = 0; k < job.features && !stops; k += width) {
    const int64_t more = job.features - k;
    width = more < kHalfBlock ? more : kHalfBlock;
    run_half_tile<Half>(worker.values + k * P * kHalfLanes, packed + k * P * kHalfQueries,
                        width, totals);
    // One vector of eight tells first whether it is worth while to look at all of them.
    const double afford = costs.term * pairs * std::min(kHalfAhead, more - width) /
                          (costs.gathered_term * job.features + costs.gathered_pair);
    for (const int vectors : {1, kGatherVectors}) {
      int count = 0;
      for (int a = 0; more > width && a < queries; ++a)
        count += find_left<Half>(job, place, first + a, vectors, totals.of[a], worker.slack,
                                 left[a]);
      const double share = vectors == 1 ? 0.5 * kGatherVectors : 1.0;
      stops = more > width && share * count <= afford;
      if (!stops) break;
    }
  }
  for (int a = 0; a < queries; ++a) {
    if (stops)
      decide_left<typename Half::Wide>(*job.sweep, place, first + a, left[a], worker);
    else
      decide_totals<Half>(job, place, first + a, totals.of[a], worker);
  }
  worker.pairs.swept += queries * place.num_valid;
  if (!worker.costs) return;
  const int64_t more = worker.pairs.gathered - gathered;
  worker.costs[tile].pairs += pairs;
  worker.costs[tile].terms += pairs * k;
  worker.costs[tile].gathered += more;
  worker.costs[tile].float_terms += pairs * (more ? (k + job.features) / 2 : k);
}

inline void begin_half_panel(const HalfJob& job, HalfWorker& worker) {
  for (int lane = 0; lane < kHalfLanes; ++lane) {
    worker.slack[lane] = worker.errors[lane] * ((1.0f + job.rel) * (1.0f + 0x1p-20f));
    worker.has_row[lane] = false;
  }
}

template <class Half>
void sweep_half_panel(const HalfJob& job, int64_t panel, HalfWorker& worker) {
  const GatherPlace place = gather_place(*job.sweep, panel);
  begin_half_panel(job, worker);
  const FloatMode mode(FloatMode::kFlush);
  const int64_t tiles = (job.sweep->num_queries + kHalfQueries - 1) / kHalfQueries;
  for (int64_t tile = 0; tile < tiles; ++tile)
    if (job.serves[tile]) sweep_half_tile<Half>(job, place, tile, worker);
}

template <class Half>
void half_values(const HalfJob& job, HalfWorker& worker, float* out) {
  constexpr int P = Half::Wide::planes;
  const int64_t queries = job.sweep->num_queries;
  begin_half_panel(job, worker);
  const FloatMode mode(FloatMode::kFlush);
  for (int64_t first = 0; first < queries; first += kHalfQueries) {
    HalfTotals totals = {};
    run_half_tile<Half>(worker.values, job.packed_queries + first * job.features * P,
                        job.features, totals);
    for (int a = 0; a < kHalfQueries && first + a < queries; ++a)
      for (int lane = 0; lane < kHalfLanes; lane += Simd::W) {
        const V distance = Half::Wide::finish(Simd::load(totals.of[a] + lane));
        Simd::store(out + (first + a) * kHalfLanes + lane,
                    Simd::mul(distance, Simd::set1(job.unscale)));
      }
  }
}

}  // namespace
}  // namespace kgfast
