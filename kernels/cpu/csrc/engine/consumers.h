// Consumers of a sweep. A producer (sweep.h, int8_sweep.h, byte_rows.h, lists of host/sweeps.h)
// gives intervals that hold the costs, which are negated scores, of one query and some candidates.
// A consumer counts, keeps, appends or writes the candidates. A NaN decides nothing; canonical
// scores decide the pairs that stay open.
//
// Cost model: two comparisons a vector and target of a count, one for the others. A survivor of the
// best k, of which a query has about k ln(N / k), costs some 50 ns (host/survivors.cpp).
#pragma once
#include <algorithm>

#include "host/job.h"
#include "scores/common.h"

namespace kgfast {
namespace {

inline uint64_t first_lanes(int count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Intervals of N vectors of candidates, of which the first is at place `first`.
template <int N>
struct Costs {
  V low[N], high[N];
  int64_t first;
  uint64_t valid;  // lanes that hold a candidate

  uint64_t above(float limit) const {
    uint64_t lanes = 0;
#pragma GCC unroll 4
    for (int b = 0; b < N; ++b)
      lanes |= uint64_t{Simd::less(Simd::set1(limit), low[b])} << (b * Simd::W);
    return lanes & valid;
  }
  uint64_t below(float limit) const {
    uint64_t lanes = 0;
#pragma GCC unroll 4
    for (int b = 0; b < N; ++b)
      lanes |= uint64_t{Simd::less(high[b], Simd::set1(limit))} << (b * Simd::W);
    return lanes & valid;
  }
  void store(float* lows, float* highs) const {
    for (int b = 0; b < N; ++b) {
      Simd::store(lows + b * Simd::W, low[b]);
      Simd::store(highs + b * Simd::W, high[b]);
    }
  }
};

// Appends open pairs to the band.
__attribute__((noinline)) void append(const SweepJob& job, int64_t query, int64_t first,
                                      uint64_t open, Worker& worker) {
  worker.opened += __builtin_popcountll(open);
  if (worker.band_size + 64 > worker.band_capacity) job.resolve(job, worker);
  for (; open; open &= open - 1)
    worker.band[worker.band_size++] = {query, candidate_of(job, first + __builtin_ctzll(open))};
}

template <int N>
__attribute__((noinline)) void keep(const SweepJob& job, int64_t position, const Costs<N>& costs,
                                    uint64_t open, Worker& worker) {
  float lows[N * Simd::W], highs[N * Simd::W];
  worker.opened += __builtin_popcountll(open);
  costs.store(lows, highs);
  keep_lanes(job, position, costs.first, open, lows, highs, worker);
}

template <int N>
__attribute__((noinline)) void record(const SweepJob& job, int64_t row, const Costs<N>& costs) {
  float lows[N * Simd::W], highs[N * Simd::W];
  float* const out = job.recorded + row * job.num_candidates + costs.first;
  costs.store(lows, highs);
  const int count = __builtin_popcountll(costs.valid);
  std::copy_n(lows, count, out);
  std::copy_n(highs, count, out + job.num_crops * job.num_queries * job.num_candidates);
}

// Returns the lanes that no comparison decides.
template <int N>
inline uint64_t open_lanes(const SweepJob& job, int64_t row, const Costs<N>& costs) {
  if (job.question != Question::count) return costs.valid & ~costs.above(limit_of(job, row));
  uint64_t open = 0;
  for (int64_t i = job.first_threshold[row]; i < job.first_threshold[row + 1]; ++i) {
    const Threshold& t = job.thresholds[i];
    open |= costs.valid & ~(costs.below(t.below) | costs.above(t.above));
  }
  return open;
}

// Counts the costs that a threshold decides, and appends the others.
template <int N>
inline void count(const SweepJob& job, const Threshold& t, const Costs<N>& costs, Worker& worker) {
  const uint64_t beats = costs.below(t.below);
  worker.greater[t.slot] += __builtin_popcountll(beats);
  const uint64_t decided = beats | costs.above(t.above);
  if (__builtin_expect(decided != costs.valid, 0))
    append(job, t.slot, costs.first, costs.valid & ~decided, worker);
}

// Consumes the costs of query `position` in a crop. Inlined: a call takes 1 % of a rank of l1 on
// AVX2.
template <int N>
__attribute__((always_inline)) inline void take(const SweepJob& job, int64_t crop,
                                                int64_t position, const Costs<N>& costs,
                                                Worker& worker) {
  const int64_t row = crop * job.num_queries + position;
  if (job.question == Question::count) {
    for (int64_t i = job.first_threshold[row]; i < job.first_threshold[row + 1]; ++i)
      count(job, job.thresholds[i], costs, worker);
    return;
  }
  if (job.question == Question::record) return record(job, row, costs);
  const uint64_t open = open_lanes(job, row, costs);
  if (__builtin_expect(open == 0, 1)) return;
  if (job.question == Question::keep)
    keep(job, position, costs, open, worker);
  else
    append(job, job.query_ids[position], costs.first, open, worker);
}

inline void take_lanes(const SweepJob& job, int64_t crop, int64_t position, int64_t first,
                       int count, const float* lows, const float* highs, Worker& worker) {
  constexpr int N = 64 / Simd::W;
  Costs<N> costs;
  costs.first = first;
  costs.valid = first_lanes(count);
  for (int b = 0; b < N; ++b) {
    costs.low[b] = Simd::load(lows + b * Simd::W);
    costs.high[b] = Simd::load(highs + b * Simd::W);
  }
  take(job, crop, position, costs, worker);
}

}  // namespace
}  // namespace kgfast
