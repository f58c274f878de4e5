// What ranks and the best k do with sums of products of bytes: what the bound leaves open of high
// bytes is asked of both, what these leave open of float32 and of canonical scores.
//
// Cost model: engine/int8_sweep.h.
#pragma once
#include "engine/counting.h"
#include "engine/int8_sweep.h"
#include "engine/topk_sweep.h"

namespace kgfast {
namespace {

// The product of two rows in float32; those of the first end with zeros.
inline float near_product(const float* q, const float* c, int64_t features) {
  V sums[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  int64_t k = 0;
  for (; k + 64 <= features; k += 64)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      sums[i] = Simd::fma(Simd::load(q + k + 16 * i), Simd::load(c + k + 16 * i), sums[i]);
  for (int i = 0; k < features; k += 16, ++i)
    sums[i] = Simd::fma(Simd::load(q + k), _mm512_maskz_loadu_ps(first_lanes(features - k), c + k),
                        sums[i]);
  return _mm512_reduce_add_ps(
      Simd::add(Simd::add(sums[0], sums[1]), Simd::add(sums[2], sums[3])));
}

// Decides the open lanes of a target by float32 and appends to the band what is still open. The
// rows were read for this panel a moment ago.
__attribute__((noinline)) void decide_near(const Int8Job& job, const Int8Target& target,
                                           const Int8Facts& facts, uint32_t open, char* scratch,
                                           Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  worker.pairs.gathered += __builtin_popcount(open);
  const float* query = job.floats + target.position * int8_padded(sweep.num_features);
  const float slope = job.near * (1.0f + 0x1p-20f) * target.query.size;
  alignas(64) float size[kInt8Column], bias[kInt8Column];
  Simd::store(size, facts.size);
  Simd::store(bias, facts.bias);
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctz(open);
    const int64_t id = candidate_of(sweep, facts.first + lane);
    const float* row = row_floats(sweep.rows.view, id, sweep.num_features,
                                  reinterpret_cast<float*>(scratch));
    const float distance =
        near_product(query, row, sweep.num_features) * target.query.inverse;
    const float tau = bias[lane] * target.query.inverse + target.minus_target;
    const float error = target.base + slope * size[lane];
    if (distance < tau - error)
      ++worker.greater[target.slot];
    else if (!(tau + error < distance))
      worker.band[worker.band_size++] = {target.slot, id}, ++worker.pairs.canonical;
  }
}

constexpr int64_t kTargetRun = 64;  // whose open pairs fit the band

// Counts the pairs that the bound decides for up to kTargetRun targets; float32 decides the others,
// when all are known: a call in between would empty the registers.
template <bool has_bias>
__attribute__((noinline)) void count_int8_run(const Int8Job& job, const Int8Target* first,
                                              const Int8Target* last, const Int8Facts& facts,
                                              const int32_t* high, const int32_t* mixed,
                                              char* scratch, Worker& worker) {
  const V scale = facts.scale, error_size = facts.error, bias = facts.bias;
  const auto valid = static_cast<__mmask16>(facts.valid);
  int64_t* const greater = worker.greater;
  uint32_t open[kTargetRun];
  const Int8Target* left[kTargetRun];
  int64_t count = 0;
  for (const Int8Target* t = first; t < last; ++t) {
    const uint32_t row = t->position % kInt8Queries * kInt8Column;
    const V distances = int8_distances(high + row, mixed + row, scale);
    const V error = int8_errors(t->query.slope, error_size, t->base);
    V tau = Simd::set1(t->minus_target);
    if (has_bias) tau = Simd::fma(bias, Simd::set1(t->query.inverse), tau);
    const uint32_t beats =
        _mm512_mask_cmp_ps_mask(valid, distances, Simd::sub(tau, error), _CMP_LT_OQ);
    const uint32_t decided =
        beats | _mm512_mask_cmp_ps_mask(valid, Simd::add(tau, error), distances, _CMP_LT_OQ);
    greater[t->slot] += __builtin_popcount(beats);
    if (__builtin_expect(decided != valid, 0)) {
      open[count] = valid & ~decided;
      left[count++] = t;
    }
  }
  for (int64_t i = 0; i < count; ++i) decide_near(job, *left[i], facts, open[i], scratch, worker);
}

// Counts the pairs of a column, if the high bytes decide all of them.
inline bool count_high_bytes(const Int8Job& job, const Int8Facts& column, const int32_t* high,
                             const int32_t* mixed, Worker& worker) {
  const Int8Target* const first = job.targets + job.sweep->first_threshold[0];
  const int64_t count = job.sweep->first_threshold[job.sweep->num_queries] -
                        job.sweep->first_threshold[0];
  const auto valid = static_cast<__mmask16>(column.valid);
  uint32_t beats[kTargetRun];
  if (count > kTargetRun) return false;
  for (int64_t i = 0; i < count; ++i) {
    const Int8Target& t = first[i];
    const int64_t row = t.position * kInt8Column;
    const V distances = int8_distances(high + row, mixed + row, column.scale);
    const V error = int8_errors(t.query.high_slope, column.high_error, t.base);
    const V tau = Simd::fma(column.bias, Simd::set1(t.query.inverse), Simd::set1(t.minus_target));
    beats[i] = _mm512_mask_cmp_ps_mask(valid, distances, Simd::sub(tau, error), _CMP_LT_OQ);
    const uint32_t loses =
        _mm512_mask_cmp_ps_mask(valid, Simd::add(tau, error), distances, _CMP_LT_OQ);
    if ((beats[i] | loses) != valid) return false;
  }
  for (int64_t i = 0; i < count; ++i) worker.greater[first[i].slot] += __builtin_popcount(beats[i]);
  return true;
}

void count_int8_panel(const Int8Job& job, const Int8Panel& place, char* scratch, const Isa& isa,
                      Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  const PanelFacts facts = int8_panel_facts(sweep, place.index);
  const auto count_run = sweep.bias ? count_int8_run<true> : count_int8_run<false>;
  const int64_t* first_target = sweep.first_threshold;
  worker.pairs.swept += (first_target[sweep.num_queries] - first_target[0]) * facts.valid;
  const auto take = [&](int64_t position, int64_t count, const Int8Facts& column,
                        const int32_t* high, const int32_t* mixed) {
    const Int8Target* t = job.targets + first_target[position];
    const Int8Target* end = job.targets + first_target[position + count];
    for (; t < end; t += kTargetRun) {
      if (worker.band_size + kTargetRun * kInt8Column > worker.band_capacity)
        isa.rescore_band(sweep, worker);
      const Int8Target* last = std::min(t + kTargetRun, end);
      count_run(job, t, last, column, high, mixed, scratch, worker);
    }
  };
  if (!begins_high(job, place, worker.bytes_pause))
    return sweep_int8_panel(job, facts, place, take);
  const auto decide = [&](const Int8Facts& column, const int32_t* high, const int32_t* mixed) {
    return count_high_bytes(job, column, high, mixed, worker);
  };
  sweep_high_bytes(job, facts, place, worker.bytes_pause, decide, take);
}

// Keeps the lanes of `open` that may be among the best k.
__attribute__((noinline)) void keep_int8_lanes(const TopkJob& topk, const Int8Query& query,
                                               int64_t position, const Int8Facts& facts,
                                               uint32_t open, V distances, float base,
                                               TopkWorker& worker) {
  alignas(64) float lanes[kInt8Column], bounds[kInt8Column];
  worker.pairs.gathered += __builtin_popcount(open);
  const V errors = int8_errors(query.slope, facts.error, base);
  Simd::store(lanes, Simd::mul(distances, Simd::set1(query.scale)));
  Simd::store(bounds, Simd::mul(errors, Simd::set1(query.scale * (1.0f + 0x1p-20f))));
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctz(open);
    keep_survivors(topk, position, facts.first, 1u << lane, lanes, bounds[lane], worker);
  }
}

// The lanes of a query that may be among the best k, of errors `slope * error`: with tau = limit +
// bias, a distance past tau + error loses, and 16 u |tau| for its roundings.
template <bool has_bias>
inline uint32_t open_int8_lanes(const Int8Job& job, const TopkJob& topk, int64_t position,
                                const Int8Facts& column, V distances, float slope, V error) {
  const float inverse = job.queries[position].inverse;
  const float tau = Keeping<Dot>::limit_of(topk, position) * inverse;
  V reach = int8_errors(slope, error, job.base[position] + (tau + std::fabs(tau) * 0x1p-20f));
  if (has_bias) {
    const V bias = Simd::mul(column.bias, Simd::set1(inverse));
    reach = Simd::add(reach, Simd::fma(Simd::abs(bias), Simd::set1(0x1p-20f), bias));
  }
  return column.valid & ~Simd::less(reach, distances);
}

template <bool has_bias>
void keep_int8_lanes_of(const Int8Job& job, const TopkJob& topk, const Int8Panel& place,
                        TopkWorker& worker) {
  const PanelFacts facts = int8_panel_facts(topk, place.index);
  worker.pairs.swept += topk.num_queries * facts.valid;
  const auto take = [&](int64_t position, int64_t count, const Int8Facts& column,
                        const int32_t* high, const int32_t* mixed) {
    const Int8Facts here = column;
    for (int64_t i = position; i < position + count; ++i) {
      const Int8Query& query = job.queries[i];
      const int64_t row = i % kInt8Queries * kInt8Column;
      const V distances = int8_distances(high + row, mixed + row, here.scale);
      const uint32_t open =
          open_int8_lanes<has_bias>(job, topk, i, here, distances, query.slope, here.error);
      if (__builtin_expect(open != 0, 0))
        keep_int8_lanes(topk, query, i, here, open, distances, job.base[i], worker);
    }
  };
  if (!begins_high(job, place, worker.bytes_pause))
    return sweep_int8_panel(job, facts, place, take);
  const auto decide = [&](const Int8Facts& column, const int32_t* high, const int32_t* mixed) {
    uint32_t open = 0;
    for (int64_t i = 0; i < topk.num_queries; ++i) {
      const int64_t row = i * kInt8Column;
      const V distances = int8_distances(high + row, mixed + row, column.scale);
      open |= open_int8_lanes<has_bias>(job, topk, i, column, distances,
                                        job.queries[i].high_slope, column.high_error);
    }
    return open == 0;
  };
  sweep_high_bytes(job, facts, place, worker.bytes_pause, decide, take);
}

void keep_int8_panel(const Int8Job& job, const TopkJob& topk, const Int8Panel& place,
                     TopkWorker& worker) {
  const auto keep = topk.bias ? keep_int8_lanes_of<true> : keep_int8_lanes_of<false>;
  keep(job, topk, place, worker);
}

void record_int8_panel(const Int8Job& job, const Int8Panel& place, float* values, float* bounds) {
  PanelFacts facts{};
  facts.valid = kInt8Candidates;
  const auto record = [&](int64_t position, const Int8Facts& column, const int32_t* high,
                          const int32_t* mixed, float slope, V error) {
    const Int8Query& query = job.queries[position];
    const int64_t at = position * kInt8Candidates + column.first;
    const int64_t row = position % kInt8Queries * kInt8Column;
    const V scale = Simd::set1(query.scale);
    const V distances = int8_distances(high + row, mixed + row, column.scale);
    Simd::store(values + at, Simd::mul(distances, scale));
    Simd::store(bounds + at, Simd::mul(int8_errors(slope, error, job.base[position]), scale));
  };
  const auto take = [&](int64_t position, int64_t count, const Int8Facts& column,
                        const int32_t* high, const int32_t* mixed) {
    for (int64_t i = position; i < position + count; ++i)
      record(i, column, high, mixed, job.queries[i].slope, column.error);
  };
  BytesPause none{};
  if (!begins_high(job, place, none)) return sweep_int8_panel(job, facts, place, take);
  const auto decide = [&](const Int8Facts& column, const int32_t* high, const int32_t* mixed) {
    for (int64_t i = 0; i < job.sweep->num_queries; ++i)
      record(i, column, high, mixed, job.queries[i].high_slope, column.high_error);
    return true;
  };
  sweep_high_bytes(job, facts, place, none, decide, take);
}

}  // namespace
}  // namespace kgfast
