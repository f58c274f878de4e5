// The linear tier: a panel of bytes against tiles of 4 queries. Pairs that a product leaves open
// are gathered, or left to another sweep.
//
// Cost model: for 4 numbers of a row 4 queries x 4 vectors of 16 candidates (AVX2: 2 of 8), one
// instruction each (without VNNI three), and 8 loads: a twentieth of the float32 sweep's rotate, or
// a sixth. A conversion, a fused operation and a comparison for a vector of pairs follow.
#pragma once
#include <cstring>

#include "engine/linear_pack.h"

namespace kgfast {
namespace {

// Vectors of candidates that are summed together, in as many registers as there are.
constexpr int kLinearVectors = Simd::W == 8 ? 2 : 4;
using LinearSums = int32_t[kLinearQueries][kLinearLanes];

// Computes <a, X + 128> of a tile. Not inlined: the sums take all the registers there are.
__attribute__((noinline)) void add_linear(const LinearJob& job, int64_t tile,
                                          const uint8_t* bytes, LinearSums& out) {
  const int8_t* queries = job.queries + tile * kLinearQueries * job.numbers;
  for (int first = 0; first < kLinearLanes; first += kLinearVectors * Simd::W) {
    const uint8_t* panel = bytes + first * kLinearGroup;
    Bytes::I sums[kLinearQueries][kLinearVectors];
#pragma GCC unroll 4
    for (int a = 0; a < kLinearQueries; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < kLinearVectors; ++b) sums[a][b] = Bytes::zero();
    for (int64_t n = 0; n < job.numbers; n += kLinearGroup) {
      Bytes::B c[kLinearVectors];
#pragma GCC unroll 4
      for (int b = 0; b < kLinearVectors; ++b)
        c[b] = Bytes::load(panel + n * kLinearLanes + b * Bytes::W);
#pragma GCC unroll 4
      for (int a = 0; a < kLinearQueries; ++a) {
        const Bytes::B q = Bytes::set_word(queries + a * job.numbers + n);
#pragma GCC unroll 4
        for (int b = 0; b < kLinearVectors; ++b)
          sums[a][b] = Bytes::add_products(sums[a][b], c[b], q);
      }
    }
#pragma GCC unroll 4
    for (int a = 0; a < kLinearQueries; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < kLinearVectors; ++b)
        Bytes::store_ints(out[a] + first + b * Simd::W, sums[a][b]);
  }
}

// Returns s <a, X> + error of one query with a vector of candidates.
inline V linear_value(const LinearJob& job, int64_t query, const int32_t* sums, int lane,
                      const LinearWorker& worker) {
  const Bytes::I sum = Bytes::add(Bytes::load_ints(sums + lane), Bytes::set1(job.offsets[query]));
  return Simd::fma(Bytes::to_floats(sum), Simd::load(worker.scales + lane),
                   Simd::load(worker.errors + lane));
}

// Finds the lanes of a tile that may not be past their targets; returns how many.
inline int64_t find_linear_left(const LinearJob& job, const GatherPlace& place, int64_t tile,
                                const LinearSums& sums, const LinearWorker& worker,
                                LaneMasks (&left)[kLinearQueries]) {
  const int64_t first = tile * kLinearQueries, rest = job.sweep->num_queries - first;
  int64_t count = 0;
  for (int a = 0; a < kLinearQueries && a < rest; ++a) {
    const V limit = Simd::set1(job.limits[first + a]);
    for (int b = 0; b < kGatherVectors; ++b) {
      const V value = linear_value(job, first + a, sums[a], b * Simd::W, worker);
      left[a][b] = place.valid[b] & ~Simd::less(value, limit);
      count += __builtin_popcount(left[a][b]);
    }
  }
  return count;
}

// Calls take(tile, sums) for every tile that the tier serves.
template <class Take>
inline void for_linear_tiles(const LinearJob& job, const LinearWorker& worker, Take take) {
  const int64_t tiles = (job.sweep->num_queries + kLinearQueries - 1) / kLinearQueries;
  alignas(64) LinearSums sums;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (!job.serves[tile]) continue;
    add_linear(job, tile, worker.bytes, sums);
    take(tile, sums);
  }
}

template <class Score>
void sweep_linear_panel(const LinearJob& job, int64_t panel, LinearWorker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const GatherPlace place = gather_place(*job.sweep, panel);
  const int64_t queries = job.sweep->num_queries;
  for (int64_t tile = 0; tile * kLinearQueries < queries; ++tile) worker.done[tile] = false;
  for_linear_tiles(job, worker, [&](int64_t tile, const LinearSums& sums) {
    LaneMasks left[kLinearQueries];
    const int64_t count = find_linear_left(job, place, tile, sums, worker, left);
    const int64_t first = tile * kLinearQueries, rest = queries - first;
    const int64_t size = rest < kLinearQueries ? rest : kLinearQueries;
    worker.pairs.swept += size * place.num_valid;
    if (count > job.afford) return;
    worker.done[tile] = true;
    worker.decided += size * place.num_valid - count;
    for (int64_t a = 0; count && a < size; ++a)
      decide_left<Score>(*job.sweep, place, first + a, left[a], worker);
  });
}

inline void try_linear_panel(const LinearJob& job, int64_t panel, LinearWorker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const GatherPlace place = gather_place(*job.sweep, panel);
  for_linear_tiles(job, worker, [&](int64_t tile, const LinearSums& sums) {
    LaneMasks left[kLinearQueries];
    worker.could[tile] += find_linear_left(job, place, tile, sums, worker, left) <= job.afford;
  });
}

inline void linear_values(const LinearJob& job, LinearWorker& worker, float* out) {
  for_linear_tiles(job, worker, [&](int64_t tile, const LinearSums& sums) {
    for (int64_t a = 0; a < kLinearQueries; ++a)
      for (int lane = 0; lane < kLinearLanes; lane += Simd::W) {
        const int64_t query = tile * kLinearQueries + a;
        Simd::store(out + query * kLinearLanes + lane,
                    linear_value(job, query, sums[a], lane, worker));
      }
  });
}

}  // namespace
}  // namespace kgfast
