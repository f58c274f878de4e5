// Consumers of sums of whole numbers, for ranks and for the best k. Both bytes decide the pairs
// that high bytes leave open; float32 and canonical scores decide the rest.
//
// Cost model: that of the engine.
#pragma once
#include "engine/int8_sweep.h"
#include "engine/topk_sweep.h"

namespace kgfast {
namespace {

// Returns the float32 product of two rows, `q` padded with zeros. A tree adds the sums of 64
// chains.
inline float near_product(const float* q, const float* c, int64_t features) {
  V sums[kBlockVectors];
#pragma GCC unroll 16
  for (V& sum : sums) sum = Simd::zero();
  for_each_block(c, features, [&](int64_t block, const float* x) {
    const float* y = q + block * kInt8Block;
#pragma GCC unroll 16
    for (int i = 0; i < kBlockVectors; ++i)
      sums[i] = Simd::fma(Simd::load(y + i * Simd::W), Simd::load(x + i * Simd::W), sums[i]);
  });
  for (int half = kBlockVectors / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] = Simd::add(sums[i], sums[i + half]);
  return sum_of(sums[0]);
}

// A pair of a panel that float32 decides. Pairs are decided together, so that reads of their rows
// overlap.
struct NearPair {
  const Int8Target* target;
  int64_t lane;  // lane of the panel
};

class NearPairs {
 public:
  static constexpr int64_t kMost = 512;

  bool has_room(int64_t pairs) const { return size_ + pairs <= kMost; }
  void add(const Int8Target* target, int64_t column, uint32_t open) {
    for (; open; open &= open - 1) pairs_[size_++] = {target, column + __builtin_ctz(open)};
  }

  // Counts the pairs, and appends to the band what is still open. Their rows were read for this
  // panel a moment ago. No branch depends on a distance, which no machine can foresee.
  __attribute__((noinline)) void decide(const Int8Job& job, const PanelFacts& panel,
                                        const float* sizes, char* scratch, const Isa& isa,
                                        Worker& worker) {
    const SweepJob& sweep = *job.sweep;
    const int64_t padded = int8_padded(sweep.num_features), before = worker.band_size;
    // Entries and products below 2^-126 count as 0: each loses less than that.
    const float flushed = static_cast<float>(sweep.num_features) * 0x1p-124f;
    if (before + size_ > worker.band_capacity) isa.rescore_band(sweep, worker);
    Pair* band = worker.band + worker.band_size;
    for (int64_t i = 0; i < size_; ++i) {
      const Int8Target& target = *pairs_[i].target;
      const int64_t lane = pairs_[i].lane, id = candidate_of(sweep, panel.first + lane);
      const float* row = row_floats(sweep.rows.view, id, sweep.num_features,
                                    reinterpret_cast<float*>(scratch));
      const float distance =
          near_product(job.floats + target.position * padded, row, sweep.num_features) *
          target.query.inverse;
      const float tau = panel.bias[lane] * target.query.inverse + target.minus_target;
      const float lost = flushed * target.query.inverse;
      const float slope = job.near * (1.0f + 0x1p-20f) * target.query.size + lost;
      const float error =
          target.base + flushed * target.query.size + lost + slope * sizes[lane];
      const bool beats = distance < tau - error, loses = tau + error < distance;
      worker.greater[target.slot] += beats;
      *band = {target.slot, id};
      band += !(beats | loses);
    }
    const int64_t open = band - (worker.band + worker.band_size);
    worker.band_size += open;
    worker.pairs.canonical += open;
    worker.pairs.gathered += size_;
    size_ = 0;
  }

 private:
  int64_t size_ = 0;
  NearPair pairs_[kMost];
};

constexpr int64_t kTargetRun = 16;  // targets between two looks at the room for open pairs

// The lanes of a column that surely beat a target, and the lanes that surely lose to the target.
struct Decided {
  uint32_t beats, loses;
};

template <bool has_bias>
inline Decided decide_lanes(const Int8Target& target, int64_t position, const Int8Facts& column,
                            WholeSums sums, float slope, const V* column_error) {
  Decided found{0, 0};
  const int64_t row = (target.position - position) * kInt8Column;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) {
    const V distances = Simd::mul(sums.at(row + p * Simd::W), column.scale[p]);
    const V error = int8_errors(slope, column_error[p], target.base);
    V tau = Simd::set1(target.minus_target);
    if (has_bias) tau = Simd::fma(column.bias[p], Simd::set1(target.query.inverse), tau);
    found.beats |= Simd::less(distances, Simd::sub(tau, error)) << (p * Simd::W);
    found.loses |= Simd::less(Simd::add(tau, error), distances) << (p * Simd::W);
  }
  found.beats &= column.valid;
  found.loses &= column.valid;
  return found;
}

// Counts the pairs that the bound decides for up to kTargetRun targets of queries from `position`
// on, and adds the other pairs to `near`.
template <bool has_bias>
__attribute__((noinline)) void count_int8_run(const Int8Target* first, const Int8Target* last,
                                              int64_t position, int64_t lane,
                                              const Int8Facts& facts, WholeSums sums,
                                              NearPairs& near, int64_t* greater) {
  const Int8Facts column = facts;
  for (const Int8Target* t = first; t < last; ++t) {
    const Decided found =
        decide_lanes<has_bias>(*t, position, column, sums, t->query.slope, column.error);
    const uint32_t decided = found.beats | found.loses;
    greater[t->slot] += __builtin_popcount(found.beats);
    if (__builtin_expect(decided != column.valid, 0)) near.add(t, lane, column.valid & ~decided);
  }
}

constexpr int64_t kHighTargets = 64;  // targets that high bytes decide together

// Counts the pairs of a column, if the high bytes decide all of them.
inline bool count_high_bytes(const Int8Job& job, const Int8Facts& column, WholeSums sums,
                             Worker& worker) {
  const Int8Target* const first = job.targets + job.sweep->first_threshold[0];
  const int64_t count = job.sweep->first_threshold[job.sweep->num_queries] -
                        job.sweep->first_threshold[0];
  uint32_t beats[kHighTargets];
  if (count > kHighTargets) return false;
  for (int64_t i = 0; i < count; ++i) {
    const Decided found = decide_lanes<true>(first[i], 0, column, sums, first[i].query.high_slope,
                                             column.high_error);
    beats[i] = found.beats;
    if ((found.beats | found.loses) != column.valid) return false;
  }
  for (int64_t i = 0; i < count; ++i) worker.greater[first[i].slot] += __builtin_popcount(beats[i]);
  return true;
}

void count_int8_panel(const Int8Job& job, const Int8Panel& place, char* scratch, const Isa& isa,
                      Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  const PanelFacts facts = panel_facts(sweep, kInt8Candidates, place.index);
  const int64_t* first_target = sweep.first_threshold;
  worker.pairs.swept += (first_target[sweep.num_queries] - first_target[0]) * facts.valid;
  const auto* sizes =
      reinterpret_cast<const float*>(place.packed +
                                     2 * kInt8Candidates * int8_padded(sweep.num_features)) +
      2 * kInt8Candidates;
  NearPairs near;
  const auto decide_near = [&] { near.decide(job, facts, sizes, scratch, isa, worker); };
  const auto count_run = sweep.bias ? count_int8_run<true> : count_int8_run<false>;
  const auto take = [&](int64_t position, int64_t count, const Int8Facts& column, WholeSums sums) {
    const Int8Target* t = job.targets + first_target[position];
    const Int8Target* end = job.targets + first_target[position + count];
    for (; t < end; t += kTargetRun) {
      if (!near.has_room(kTargetRun * kInt8Column)) decide_near();
      const Int8Target* last = std::min(t + kTargetRun, end);
      count_run(t, last, position, column.first - facts.first, column, sums, near, worker.greater);
    }
  };
  const auto decide = [&](const Int8Facts& column, WholeSums sums) {
    return count_high_bytes(job, column, sums, worker);
  };
  sweep_int8(job, facts, place, worker.bytes_pause, decide, take);
  decide_near();
}

// Keeps the lanes of `open` that may be among the best k.
__attribute__((noinline)) void keep_int8_lanes(const TopkJob& topk, const Int8Query& query,
                                               int64_t position, const Int8Facts& facts,
                                               uint32_t open, const V* distances, float base,
                                               TopkWorker& worker) {
  alignas(64) float lanes[kInt8Column], bounds[kInt8Column];
  worker.pairs.gathered += __builtin_popcount(open);
  const V scale = Simd::set1(query.scale), up = Simd::set1(query.scale * (1.0f + 0x1p-20f));
  for (int p = 0; p < kParts; ++p) {
    const V errors = int8_errors(query.slope, facts.error[p], base);
    Simd::store(lanes + p * Simd::W, Simd::mul(distances[p], scale));
    Simd::store(bounds + p * Simd::W, Simd::mul(errors, up));
  }
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctz(open);
    keep_survivors(topk, position, facts.first, 1u << lane, lanes, bounds[lane], worker);
  }
}

// Returns the lanes of a query that may be among the best k. With tau = limit + bias, a distance
// past tau + slope * error loses, with 16 u |tau| more for roundings.
template <bool has_bias>
inline uint32_t open_int8_lanes(const Int8Job& job, const TopkJob& topk, int64_t position,
                                const Int8Facts& column, const V* distances, float slope,
                                const V* error) {
  const float inverse = job.queries[position].inverse;
  const float tau = Keeping<Dot>::limit_of(topk, position) * inverse;
  const float base = job.base[position] + (tau + std::fabs(tau) * 0x1p-20f);
  uint32_t loses = 0;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) {
    V reach = int8_errors(slope, error[p], base);
    if (has_bias) {
      const V bias = Simd::mul(column.bias[p], Simd::set1(inverse));
      reach = Simd::add(reach, Simd::fma(Simd::abs(bias), Simd::set1(0x1p-20f), bias));
    }
    loses |= Simd::less(reach, distances[p]) << (p * Simd::W);
  }
  return column.valid & ~loses;
}

// Computes the distances of query i of the sums, in units of the query's scale.
inline void int8_distances(WholeSums sums, int64_t i, const Int8Facts& column, V* distances) {
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p)
    distances[p] = Simd::mul(sums.at(i * kInt8Column + p * Simd::W), column.scale[p]);
}

template <bool has_bias>
void keep_int8_lanes_of(const Int8Job& job, const TopkJob& topk, const Int8Panel& place,
                        TopkWorker& worker) {
  const PanelFacts facts = panel_facts(topk, kInt8Candidates, place.index);
  worker.pairs.swept += topk.num_queries * facts.valid;
  const auto take = [&](int64_t position, int64_t count, const Int8Facts& column, WholeSums sums) {
    const Int8Facts here = column;
    for (int64_t i = position; i < position + count; ++i) {
      const Int8Query& query = job.queries[i];
      V distances[kParts];
      int8_distances(sums, i - position, here, distances);
      const uint32_t open =
          open_int8_lanes<has_bias>(job, topk, i, here, distances, query.slope, here.error);
      if (__builtin_expect(open != 0, 0))
        keep_int8_lanes(topk, query, i, here, open, distances, job.base[i], worker);
    }
  };
  const auto decide = [&](const Int8Facts& column, WholeSums sums) {
    uint32_t open = 0;
    for (int64_t i = 0; i < topk.num_queries; ++i) {
      V distances[kParts];
      int8_distances(sums, i, column, distances);
      open |= open_int8_lanes<has_bias>(job, topk, i, column, distances,
                                        job.queries[i].high_slope, column.high_error);
    }
    return open == 0;
  };
  sweep_int8(job, facts, place, worker.bytes_pause, decide, take);
}

// Returns the tier; `features_per_cycle`: so many features of a pair save a cycle against float32.
constexpr Int8Tier int8_tier(double features_per_cycle) {
  return {features_per_cycle,
          pack_word_queries,
          pack_word_panel,
          pack_int8_panel,
          check_int8_panel,
          count_int8_panel,
          [](const Int8Job& job, const TopkJob& topk, const Int8Panel& place, TopkWorker& worker) {
            const auto keep = topk.bias ? keep_int8_lanes_of<true> : keep_int8_lanes_of<false>;
            keep(job, topk, place, worker);
          }};
}

}  // namespace
}  // namespace kgfast
