// The linear tier's product: a panel of bytes against tiles of 4 queries.
//
// Cost model: for 4 numbers of a row 4 queries x 4 vectors of 16 candidates, one instruction each,
// and 8 loads: a tenth of the float32 sweep's rotate, a sixteenth with its roots. A tile is left
// where the first half of the lanes has more open pairs than gathering pays for.
#pragma once
#include "engine/linear_pack.h"

namespace kgfast {
namespace {

constexpr int kLinearVectors = 4;  // of 16 candidates that are summed together: half of a panel
using LinearSums = __m512i[kLinearQueries][kLinearVectors];

// s <a, X> of a tile with the candidates of half a panel, and their errors.
inline void add_linear(const LinearJob& job, int64_t tile, int first, const LinearWorker& worker,
                       V (&values)[kLinearQueries][kLinearVectors]) {
  const uint8_t* panel = worker.bytes + first * kLinearGroup;
  const int8_t* queries = job.tiles + tile * kLinearQueries * job.numbers;
  LinearSums sums;
#pragma GCC unroll 4
  for (int a = 0; a < kLinearQueries; ++a)
#pragma GCC unroll 4
    for (int b = 0; b < kLinearVectors; ++b)
      sums[a][b] = _mm512_set1_epi32(job.offsets[tile * kLinearQueries + a]);
  for (int64_t n = 0; n < job.numbers; n += kLinearGroup) {
    __m512i c[kLinearVectors];
#pragma GCC unroll 4
    for (int b = 0; b < kLinearVectors; ++b)
      c[b] = _mm512_loadu_si512(panel + n * kLinearLanes + b * 64);
#pragma GCC unroll 4
    for (int a = 0; a < kLinearQueries; ++a) {
      int32_t word;
      __builtin_memcpy(&word, queries + n * kLinearQueries + a * kLinearGroup, sizeof word);
      const __m512i q = _mm512_set1_epi32(word);
#pragma GCC unroll 4
      for (int b = 0; b < kLinearVectors; ++b) sums[a][b] = _mm512_dpbusd_epi32(sums[a][b], c[b], q);
    }
  }
#pragma GCC unroll 4
  for (int b = 0; b < kLinearVectors; ++b) {
    const V scale = Simd::load(worker.scales + first + b * Simd::W);
    const V error = Simd::load(worker.errors + first + b * Simd::W);
#pragma GCC unroll 4
    for (int a = 0; a < kLinearQueries; ++a)
      values[a][b] = Simd::fma(_mm512_cvtepi32_ps(sums[a][b]), scale, error);
  }
}

// Lanes of a tile that may not be past its targets; how many, or more than the job affords.
inline int64_t find_linear_left(const LinearJob& job, const GatherPlace& place, int64_t tile,
                                const LinearWorker& worker, LaneMasks (&left)[kLinearQueries]) {
  const int64_t rest = job.sweep->num_queries - tile * kLinearQueries;
  int64_t count = 0;
  for (int first = 0; first < kLinearLanes && count <= job.afford;
       first += kLinearVectors * Simd::W) {
    V values[kLinearQueries][kLinearVectors];
    add_linear(job, tile, first, worker, values);
    for (int a = 0; a < kLinearQueries && a < rest; ++a) {
      const V limit = Simd::set1(job.limits[tile * kLinearQueries + a]);
      for (int b = 0; b < kLinearVectors; ++b) {
        const int at = first / Simd::W + b;
        left[a][at] = place.valid[at] & ~Simd::less(values[a][b], limit);
        count += __builtin_popcount(left[a][at]);
      }
    }
  }
  return count;
}

template <class Score>
void sweep_linear_panel(const LinearJob& job, int64_t panel, LinearWorker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const GatherPlace place = gather_place(*job.sweep, panel);
  const int64_t queries = job.sweep->num_queries;
  for (int64_t tile = 0, first = 0; first < queries; ++tile, first += kLinearQueries) {
    worker.done[tile] = false;
    if (!job.serves[tile]) continue;
    LaneMasks left[kLinearQueries];
    const int64_t count = find_linear_left(job, place, tile, worker, left);
    const int64_t size = queries - first < kLinearQueries ? queries - first : kLinearQueries;
    worker.pairs.swept += size * place.num_valid;
    if (count > job.afford) continue;
    worker.done[tile] = true;
    worker.decided += size * place.num_valid - count;
    for (int64_t a = 0; count && a < size; ++a)
      decide_left<Score>(*job.sweep, place, first + a, left[a], worker);
  }
}

inline void try_linear_panel(const LinearJob& job, int64_t panel, LinearWorker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const GatherPlace place = gather_place(*job.sweep, panel);
  const int64_t tiles = (job.sweep->num_queries + kLinearQueries - 1) / kLinearQueries;
  LaneMasks left[kLinearQueries];
  for (int64_t tile = 0; tile < tiles; ++tile)
    if (job.serves[tile])
      worker.could[tile] += find_linear_left(job, place, tile, worker, left) <= job.afford;
}

inline void linear_values(const LinearJob& job, LinearWorker& worker, float* out) {
  const int64_t tiles = (job.sweep->num_queries + kLinearQueries - 1) / kLinearQueries;
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int first = 0; first < kLinearLanes; first += kLinearVectors * Simd::W) {
      V values[kLinearQueries][kLinearVectors];
      add_linear(job, tile, first, worker, values);
      for (int a = 0; a < kLinearQueries; ++a)
        for (int b = 0; b < kLinearVectors; ++b)
          Simd::store(out + (tile * kLinearQueries + a) * kLinearLanes + first + b * Simd::W,
                      values[a][b]);
    }
}

}  // namespace
}  // namespace kgfast
