// Rows of any dtype as tiles of bf16, rounded to nearest, ties to even.
//
// Cost model, for 32 numbers: a left tile takes a conversion, a right tile a conversion and a
// permutation. A transpose adds 4 shuffles.
#pragma once
#include <algorithm>

#include "engine/load_rows.h"
#include "host/bf16_loss.h"
#include "host/fpmode.h"
#include "scores/common.h"

namespace kgfast {
namespace {

inline __mmask16 lanes_before(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : count <= 0 ? 0 : (1u << count) - 1);
}

// Rounds to bf16, and returns the bits: numbers of `low`, then of `high`.
inline __m512i rounded(V low, V high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Rounds to bf16, and returns the bits: numbers of `low` and `high` in turns.
inline __m512i rounded_pairs(V low, V high) {
  alignas(64) static constexpr uint16_t places[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(places), rounded(low, high));
}

// Up to 32 rows in float32, read in place or copied to room[32][features].
struct FloatRows {
  const float* rows[kTilePair];
  int64_t count, features;

  FloatRows(const View& view, int64_t first, int64_t valid, int64_t width, float* room)
      : count(std::min(valid, kTilePair)), features(width) {
    const bool direct = view.dtype == DType::f32 && view.step == 1;
    for (int64_t i = 0; i < kTilePair; ++i) {
      float* own = room + i * width;
      if (!direct && i < count) load_floats(view, first + i, 0, 0, width, own);
      rows[i] = i >= count ? room : direct ? run_at<float>(view, first + i, 0, 0) : own;
    }
  }

  // Loads 16 features from k on, and zeros past the last.
  V load(int64_t row, int64_t k) const {
    const __mmask16 lanes = row < count ? lanes_before(features - k) : 0;
    return _mm512_maskz_loadu_ps(lanes, rows[row] + k);
  }
};

// Packs a tile [16][32]: rows from `first` on, features from k on.
inline void pack_left(const FloatRows& rows, int64_t first, int64_t k, uint16_t* tile) {
  for (int64_t i = 0; i < kTileRows; ++i)
    _mm512_store_si512(tile + i * kTilePair,
                       rounded(rows.load(first + i, k), rows.load(first + i, k + 16)));
}

// Packs a tile [16 pairs of rows][16 features][2].
inline void pack_right(const FloatRows& rows, int64_t k, uint16_t* tile) {
  for (int64_t i = 0; i < kTileRows; ++i)
    _mm512_store_si512(tile + i * kTilePair,
                       rounded_pairs(rows.load(2 * i, k), rows.load(2 * i + 1, k)));
}

// Transposes words of two numbers: a left tile of 16 rows to a right tile of 16 columns, or back.
inline void transpose_words(const uint16_t* tile, uint16_t* out) {
  const float* rows[kTileRows];
  for (int64_t i = 0; i < kTileRows; ++i)
    rows[i] = reinterpret_cast<const float*>(tile + i * kTilePair);
  Simd::transpose(rows, 0, reinterpret_cast<float*>(out), kTileRows);
}

inline void pack_bf16_queries(const Bf16LossJob& job, int64_t group, uint16_t* queries,
                              uint16_t* coefficients, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t depth = job.shape.features / kTilePair, groups = job.shape.queries / kTilePair;
  const int64_t first = group * kTilePair, left = job.query.count - first;
  const FloatRows rows(job.query, first, left, job.num_features, scratch);
  alignas(64) uint16_t tile[kTileNumbers];
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t k = 0; k < depth; ++k) {
      pack_left(rows, half * kTileRows, k * kTilePair, tile);
      transpose_words(tile, queries + ((2 * group + half) * depth + k) * kTileNumbers);
    }
  for (int64_t k = 0; coefficients && k < 2 * depth; ++k)
    pack_right(rows, k * kTileRows, coefficients + (k * groups + group) * kTileNumbers);
}

}  // namespace
}  // namespace kgfast
