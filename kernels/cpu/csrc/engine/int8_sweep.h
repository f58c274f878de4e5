// Sums of products of bytes by AMX: a panel of 64 candidates against tiles of 16 queries.
//
// Cost model: 16 queries x 32 candidates x 64 features are 6 tile products of 16 cycles and 6 tile
// loads; 512 sums are then stored, and cost 12 vector instructions for 16 pairs: for 256 features
// 21 cycles for 16 pairs (measured), where float32 takes 128. The sums of the last tile are compared between
// the products of the next, as the machine looks ahead by no more instructions than a block's loads
// are; and these are stored behind that, as loads wait for stores before them whose addresses agree
// in 12 bits.
#pragma once
#include "engine/counting.h"
#include "engine/int8_pack.h"
#include "engine/tiles.h"
#include "engine/topk_sweep.h"

namespace kgfast {
namespace {

constexpr int64_t kSums = kInt8Queries * kInt8Column;

// Sums of one tile of queries and two columns of candidates: of H.H', and of H.L' + L.H'.
struct Int8Products {
  alignas(64) int32_t high[2][kSums], mixed[2][kSums];
};

// Adds the products of one block of features, of a tile of queries and two columns of candidates,
// to tiles 0 to 3; what stands low is so many bytes on.
inline void add_products(const int8_t* queries, int64_t query_low, const int8_t* candidates,
                         const int8_t* second, int64_t candidate_low) {
  _tile_loadd(4, queries, kInt8Block);
  _tile_loadd(6, candidates, kInt8Block);
  _tile_dpbssd(0, 4, 6);
  _tile_loadd(7, second, kInt8Block);
  _tile_dpbssd(2, 4, 7);
  _tile_loadd(5, queries + query_low, kInt8Block);
  _tile_dpbssd(1, 5, 6);
  _tile_dpbssd(3, 5, 7);
  _tile_loadd(6, candidates + candidate_low, kInt8Block);
  _tile_dpbssd(1, 4, 6);
  _tile_loadd(7, second + candidate_low, kInt8Block);
  _tile_dpbssd(3, 4, 7);
}

inline void clear_products() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void store_products(Int8Products* sums) {
  _tile_stored(0, sums->high[0], 64);
  _tile_stored(1, sums->mixed[0], 64);
  _tile_stored(2, sums->high[1], 64);
  _tile_stored(3, sums->mixed[1], 64);
}

// What is the same for all queries of a column of candidates.
struct Int8Facts {
  V scale, error, size, bias;  // `error` is times a query's slope
  int64_t first;   // position of lane 0 among the candidates
  uint32_t valid;  // lanes that hold a candidate
};

inline Int8Facts column_facts(const Int8Job& job, const PanelFacts& panel, const float* facts,
                              int64_t column) {
  const int64_t left = panel.valid - column;
  const V size = Simd::load(facts + 128 + column), low = Simd::load(facts + 192 + column);
  const V error = Simd::fma(Simd::set1(job.rounding_share), size,
                            Simd::fma(Simd::set1(job.low_share), low,
                                      Simd::load(facts + 64 + column)));
  return {Simd::load(facts + column),
          Simd::mul(error, Simd::set1(1.0f + 0x1p-20f)),
          size,
          Simd::load(panel.bias + column),
          panel.first + column,
          static_cast<uint32_t>(left < 0 ? 0 : first_lanes(left))};
}

// Distances of a query, in units of its scale.
inline V int8_distances(const int32_t* high, const int32_t* mixed, V scale) {
  const V sum = Simd::fma(_mm512_cvtepi32_ps(_mm512_load_si512(high)), Simd::set1(256.0f),
                          _mm512_cvtepi32_ps(_mm512_load_si512(mixed)));
  return Simd::mul(sum, scale);
}

// The bound on their errors, and `base`.
inline V int8_errors(const Int8Query& query, V error, float base) {
  return Simd::fma(Simd::set1(query.slope), error, Simd::set1(base));
}

constexpr int64_t kRun = 8;  // queries that are worth a call

// Calls take(position, count, column facts, sums of H.H', sums of the mixed products), of a whole
// tile of queries, for runs of its queries and every column of a packed panel: a part of the last
// tile's after each block of the next.
template <class Take>
inline void sweep_int8_panel(const Int8Job& job, const PanelFacts& panel, const char* packed,
                             Take take) {
  constexpr int64_t block = kInt8Column * kInt8Block;
  const int64_t padded = int8_padded(job.sweep->num_features), queries = job.sweep->num_queries;
  const int64_t blocks = padded / kInt8Block, query_low = kInt8Queries * padded;
  const auto* facts = reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * padded);
  const FloatMode mode(FloatMode::kIeee);
  const Tiles tiles;
  Int8Products sums;
  for (int64_t first = 0; first < panel.valid; first += 2 * kInt8Column) {
    const auto* candidates = reinterpret_cast<const int8_t*>(packed) + first * padded;
    const auto* second = candidates + kInt8Column * padded;
    const Int8Facts columns[2] = {column_facts(job, panel, facts, first),
                                  column_facts(job, panel, facts, first + kInt8Column)};
    for (int64_t position = 0; position < queries + kInt8Queries; position += kInt8Queries) {
      const bool multiplies = position < queries;
      const int64_t last = position - kInt8Queries;  // the tile whose sums are there
      const int64_t count = last < 0 ? 0 : std::min(kInt8Queries, queries - last);
      if (multiplies) clear_products();
      for (int64_t i = 0, done = 0; i < blocks; ++i) {
        if (multiplies)
          add_products(job.tiles + position * 2 * padded + i * block, query_low,
                       candidates + i * block, second + i * block, kInt8Candidates * padded);
        const int64_t due = i + 1 < blocks ? (i + 1) * 2 * count / blocks & -kRun : 2 * count;
        while (done < due) {  // in the order of columns, then queries
          const int64_t column = done >= count, row = done - column * count;
          const int64_t run = std::min(due - done, count - row);
          take(last + row, run, columns[column], sums.high[column], sums.mixed[column]);
          done += run;
        }
      }
      if (multiplies) store_products(&sums);
    }
  }
}

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
    const V error = int8_errors(t->query, error_size, t->base);
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

void count_int8_panel(const Int8Job& job, int64_t panel, const char* packed, char* scratch,
                      const Isa& isa, Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  const PanelFacts facts = panel_facts(sweep, kInt8Candidates, panel);
  const auto count_run = sweep.bias ? count_int8_run<true> : count_int8_run<false>;
  const int64_t* first_target = sweep.first_threshold;
  worker.pairs.swept += (first_target[sweep.num_queries] - first_target[0]) * facts.valid;
  sweep_int8_panel(job, facts, packed,
                   [&](int64_t position, int64_t count, const Int8Facts& column,
                       const int32_t* high, const int32_t* mixed) {
                     const Int8Target* t = job.targets + first_target[position];
                     const Int8Target* end = job.targets + first_target[position + count];
                     for (; t < end; t += kTargetRun) {
                       if (worker.band_size + kTargetRun * kInt8Column > worker.band_capacity)
                         isa.rescore_band(sweep, worker);
                       const Int8Target* last = std::min(t + kTargetRun, end);
                       count_run(job, t, last, column, high, mixed, scratch, worker);
                     }
                   });
}

// Keeps the lanes of `open` that may be among the best k.
__attribute__((noinline)) void keep_int8_lanes(const TopkJob& topk, const Int8Query& query,
                                               int64_t position, const Int8Facts& facts,
                                               uint32_t open, V distances, float base,
                                               TopkWorker& worker) {
  alignas(64) float lanes[kInt8Column], bounds[kInt8Column];
  worker.pairs.gathered += __builtin_popcount(open);
  const V errors = int8_errors(query, facts.error, base);
  Simd::store(lanes, Simd::mul(distances, Simd::set1(query.scale)));
  Simd::store(bounds, Simd::mul(errors, Simd::set1(query.scale * (1.0f + 0x1p-20f))));
  for (; open; open &= open - 1) {
    const int lane = __builtin_ctz(open);
    keep_survivors(topk, position, facts.first, 1u << lane, lanes, bounds[lane], worker);
  }
}

// With tau = limit + bias, a distance past tau + error loses, and 16 u |tau| for its roundings.
void keep_int8_panel(const Int8Job& job, const TopkJob& topk, int64_t panel, const char* packed,
                     TopkWorker& worker) {
  const PanelFacts facts = panel_facts(topk, kInt8Candidates, panel);
  worker.pairs.swept += topk.num_queries * facts.valid;
  sweep_int8_panel(
      job, facts, packed,
      [&](int64_t position, int64_t count, const Int8Facts& column, const int32_t* high,
          const int32_t* mixed) {
        const Int8Facts here = column;
        const bool has_bias = topk.bias;
        for (int64_t i = 0; i < count; ++i) {
          const Int8Query& query = job.queries[position + i];
          const int64_t row = (position + i) % kInt8Queries * kInt8Column;
          const V distances =
              int8_distances(high + row, mixed + row, here.scale);
          const float base = job.base[position + i];
          const float tau = Keeping<Dot>::limit_of(topk, position + i) * query.inverse;
          V reach = int8_errors(query, here.error, base + (tau + std::fabs(tau) * 0x1p-20f));
          if (has_bias) {
            const V bias = Simd::mul(here.bias, Simd::set1(query.inverse));
            reach = Simd::add(reach, Simd::fma(Simd::abs(bias), Simd::set1(0x1p-20f), bias));
          }
          const uint32_t open = here.valid & ~Simd::less(reach, distances);
          if (__builtin_expect(open != 0, 0))
            keep_int8_lanes(topk, query, position + i, here, open, distances, base, worker);
        }
      });
}

void record_int8_panel(const Int8Job& job, const char* packed, float* values, float* bounds) {
  PanelFacts facts{};
  facts.valid = kInt8Candidates;
  sweep_int8_panel(job, facts, packed,
                   [&](int64_t position, int64_t count, const Int8Facts& column,
                       const int32_t* high, const int32_t* mixed) {
                     for (int64_t i = 0; i < count; ++i) {
                       const Int8Query& query = job.queries[position + i];
                       const int64_t at = (position + i) * kInt8Candidates + column.first;
                       const int64_t row = (position + i) % kInt8Queries * kInt8Column;
                       const V scale = Simd::set1(query.scale);
                       const V distances = int8_distances(high + row, mixed + row, column.scale);
                       const V errors = int8_errors(query, column.error, job.base[position + i]);
                       Simd::store(values + at, Simd::mul(distances, scale));
                       Simd::store(bounds + at, Simd::mul(errors, scale));
                     }
                   });
}

}  // namespace
}  // namespace kgfast
