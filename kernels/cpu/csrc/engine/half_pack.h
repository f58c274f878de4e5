// Packing for the half-precision sweep: multiplies values by a power of two, rounds them, and
// measures how far this moved each candidate and query. A value that does not fit makes its row
// zeros, and the row's error infinite, so that the row's pairs stay open.
#pragma once
#include <cmath>
#include <limits>

#include "engine/pack.h"
#include "host/half.h"
#include "scores/half.h"

namespace kgfast {
namespace {

// Adds one feature's move by rounding, in the norm of the score.
template <class Score>
inline V add_move(V sum, const V* move) {
  if constexpr (Score::terms == Terms::magnitudes) return Simd::add(sum, Simd::abs(move[0]));
  if constexpr (Score::terms == Terms::squares) return Simd::fma(move[0], move[0], sum);
  if constexpr (Score::terms == Terms::moduli)
    return Simd::add_sqrt(
        sum, Simd::fma(move[0], move[0], Simd::fma(move[1], move[1], Simd::set1(kTiny))));
}

// Returns an upper bound on the move of a row from add_move's sum of scaled values. The bound
// allows for the roundings of the sum and of its roots (2^-14).
template <class Score>
inline float largest_move(float sum, int64_t features, float scale) {
  const double terms = static_cast<double>(features) * Score::planes;
  const double size = Score::terms == Terms::squares ? std::sqrt(static_cast<double>(sum)) : sum;
  const double most = size * (1.0 + 0x1p-13 + (terms + 16.0) * 0x1p-22) + terms * 0x1p-60;
  return static_cast<float>(most / scale * (1.0 + 0x1p-20));
}

// Rounds W scaled values of each plane to `out`, planes `stride` apart, and adds their moves to
// `sum`. Returns the lanes that do not fit or are not numbers.
template <class Score>
inline uint32_t round_values(const V* x, float limit, uint16_t* out, int64_t stride, V& sum) {
  constexpr int P = Score::planes;
  V move[P];
  uint32_t misfits = 0;
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    Half16::narrow(x[p], out + p * stride);
    move[p] = Simd::sub(x[p], Half16::widen(out + p * stride));
    misfits |= 0xFFFFu & ~_mm512_cmp_ps_mask(Simd::abs(x[p]), Simd::set1(limit), _CMP_LE_OQ);
  }
  sum = add_move<Score>(sum, move);
  return misfits;
}

// W rows of the table, some features of one plane, transposed; rows that are not float32 are
// converted first.
struct RowBlock {
  alignas(64) float converted[Simd::W * kPackBlock];
  const float* rows[Simd::W];

  void transpose(const View& view, bool direct, const int64_t* ids, int plane, int64_t feature,
                 int64_t width, float* out) {
    for (int i = 0; i < Simd::W; ++i) {
      rows[i] = converted + i * kPackBlock;
      if (direct)
        rows[i] = run_at<float>(view, ids[i], plane, feature);
      else
        load_floats(view, ids[i], plane, feature, width, converted + i * kPackBlock);
    }
    transpose_rows(rows, width, Simd::W, out);
  }
};

// Packs W candidates, from a lane on; returns the lanes that do not fit.
template <class Half>
inline uint32_t pack_half_lanes(const SweepJob& job, float scale, const int64_t* ids,
                                uint16_t* out, float* errors) {
  using Score = typename Half::Wide;
  constexpr int W = Simd::W, P = Score::planes;
  const bool direct = is_direct(job.rows);
  const V factor = Simd::set1(scale);
  const int64_t features = job.num_features;
  RowBlock block;
  alignas(64) float columns[P][kPackBlock * W];
  V sum = Simd::zero();
  uint32_t misfits = 0;
  for (int64_t k = 0; k < features; k += kPackBlock) {
    const int64_t width = features - k < kPackBlock ? features - k : kPackBlock;
    for (int p = 0; p < P; ++p)
      block.transpose(job.rows.view, direct, ids, p, k, width, columns[p]);
    for (int64_t i = 0; i < width; ++i) {
      V x[P];
      for (int p = 0; p < P; ++p) x[p] = Simd::mul(Simd::load(columns[p] + i * W), factor);
      uint16_t* to = out + (k + i) * P * kHalfLanes;
      misfits |= round_values<Score>(x, Half::limit, to, kHalfLanes, sum);
    }
  }
  float sums[W];
  Simd::store(sums, sum);
  for (int i = 0; i < W; ++i) errors[i] = largest_move<Score>(sums[i], features, scale);
  return misfits;
}

template <class Half>
void pack_half_panel(const SweepJob& job, float scale, int64_t panel, const HalfPanels& out,
                     Worker& worker) {
  constexpr int W = Simd::W, P = Half::Wide::planes;
  const FloatMode mode(FloatMode::kIeee);
  const int64_t first = panel * kHalfLanes, left = job.num_candidates - first;
  const int valid = static_cast<int>(left < kHalfLanes ? left : kHalfLanes);
  const int64_t numbers = job.num_features * P, padded = padded_to_chains(job.num_features) * P;
  bool any = false;
  for (int lane = 0; lane < kHalfLanes; lane += W) {
    int64_t ids[W];
    for (int i = 0; i < W; ++i)
      ids[i] = candidate_of(job, first + (lane + i < valid ? lane + i : valid - 1));
    uint32_t misfits =
        pack_half_lanes<Half>(job, scale, ids, out.values + lane, out.errors + lane);
    any |= misfits != 0;
    for (; misfits; misfits &= misfits - 1) {
      const int misfit = lane + __builtin_ctz(misfits);
      out.errors[misfit] = std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < numbers; ++i) out.values[i * kHalfLanes + misfit] = 0;
    }
  }
  std::memset(out.values + numbers * kHalfLanes, 0,
              sizeof(uint16_t) * (padded - numbers) * kHalfLanes);
  if (any) find_nonfinite(job, first, valid, worker);
}

template <class Half>
void pack_half_query(const SweepJob& job, float scale, int64_t row, uint32_t* to, float* error) {
  using Score = typename Half::Wide;
  constexpr int W = Simd::W, P = Score::planes;
  const int64_t features = padded_to_chains(job.num_features);
  float run[kMaxPlanes][kPackBlock];
  uint16_t rounded[P][W];
  V sum = Simd::zero();
  uint32_t misfits = 0;
  for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
    const int64_t rest = job.num_features - k, width = rest < kPackBlock ? rest : kPackBlock;
    load_query(job, row, k, width, run);
    for (int p = 0; p < P; ++p)
      for (int64_t i = width; i < kPackBlock; ++i) run[p][i] = 0.0f;
    for (int64_t i = 0; i < kPackBlock && k + i < features; i += W) {
      V x[P];
      for (int p = 0; p < P; ++p) x[p] = Simd::mul(Simd::load(run[p] + i), Simd::set1(scale));
      misfits |= round_values<Score>(x, Half::limit, rounded[0], W, sum);
      for (int64_t j = 0; j < W && k + i + j < features; ++j)
        for (int p = 0; p < P; ++p)
          to[((k + i + j) * P + p) * kHalfQueries] = rounded[p][j] * 0x10001u;
    }
  }
  float sums[W], total = 0.0f;
  Simd::store(sums, sum);
  for (const float x : sums) total += x;
  *error = largest_move<Score>(total, job.num_features, scale);
  if (!misfits) return;
  *error = std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < features * P; ++i) to[i * kHalfQueries] = 0;
}

// Packs all queries; the last tile repeats its last query.
template <class Half>
void pack_half_queries(const SweepJob& job, float scale, uint32_t* out, float* errors) {
  constexpr int P = Half::Wide::planes;
  const FloatMode mode(FloatMode::kIeee);
  const int64_t features = padded_to_chains(job.num_features), last = job.num_queries - 1;
  const int64_t padded = (last / kHalfQueries + 1) * kHalfQueries;
  for (int64_t position = 0; position < padded; ++position) {
    const int64_t tile = position / kHalfQueries, from = position < last ? position : last;
    uint32_t* to = out + tile * features * P * kHalfQueries + position % kHalfQueries;
    pack_half_query<Half>(job, scale, job.query_ids[from], to, errors + from);
  }
}

}  // namespace
}  // namespace kgfast
