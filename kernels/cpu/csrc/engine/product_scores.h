// Scores of `dot`, as products like its gradients: rows are the coefficients, read in place, and
// queries are the lanes. Queries are transposed once, and scores when they are stored.
//
// Crops: sums of kDepth features, in registers, are folded in their order from feature 0. Where a
// crop ends inside, its part is summed apart, so a crop's score has the bits of that crop alone.
#pragma once
#include <algorithm>
#include <cstring>

#include "engine/pack.h"
#include "engine/product.h"

namespace kgfast {
namespace {

// Rows of a block. Each query has a run of as many scores, written past the cache: runs of 96 took
// 1.5 times the time where [B, N] is 29 MB.
constexpr int64_t kScoreRows = 384;
constexpr int64_t kCopiedFloats = 1 << 18;

// Returns the shape. Rows that are plain float32 are read in place, others copied.
inline ProductScoresShape product_scores_shape(const ScoresJob& job) {
  const int64_t fit = is_direct(job.rows) ? kScoreRows : kCopiedFloats / job.num_features;
  const int64_t rows = std::clamp<int64_t>(fit / 96 * 96, 96, kScoreRows);  // whole tiles, vectors
  const int64_t copied = is_direct(job.rows) ? 0 : rows * job.num_features;
  return {rows, copied, copied + 2 * rows * kStrip};
}

inline Coefficients coefficients_of_rows(const ScoresJob& job, int64_t row, int64_t rows,
                                         float* copied) {
  const View& table = job.rows.view;
  if (is_direct(job.rows)) return {run_at<float>(table, row, 0, 0), table.row_stride, 1};
  for (int64_t i = 0; i < rows; ++i)
    load_floats(table, row + i, 0, 0, job.num_features, copied + i * job.num_features);
  return {copied, job.num_features, 1};
}

// Packs the features of a strip's queries, W queries at a time; the last query is repeated.
inline void pack_query_strip(const ProductScoresJob& job, int64_t strip, float* out) {
  constexpr int W = Simd::W;
  const FeatureBlock& held = job.strips[strip];
  const FloatMode mode(FloatMode::kIeee);
  alignas(64) float converted[W * kPackBlock];
  const float* rows[W];
  for (int i = 0; i < W; ++i) rows[i] = converted + i * kPackBlock;
  for (int64_t lane = 0; lane < held.count; lane += W)
    for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
      const int64_t width = std::min(kPackBlock, job.num_features - k);
      for (int i = 0; i < W; ++i) {
        const int64_t query = held.feature + std::min(lane + i, held.count - 1);
        load_floats(job.query, query, 0, k, width, converted + i * kPackBlock);
      }
      transpose_rows(rows, width, kStrip, out + k * kStrip + lane);
    }
}

// Scores of a block of rows with the queries of a strip.
struct ScoreTile {
  const float* sums;  // [rows][kStrip]
  int64_t row, rows;
  FeatureBlock queries;
};

// Stores scores of W rows from `row` on with W queries from `lane` on; fewer where these end.
inline void store_square(const ScoresJob& job, const ScoreTile& tile, int64_t row, int64_t lane,
                         float* out) {
  constexpr int W = Simd::W;
  alignas(64) float square[W * W];
  const float* rows[W];
  const int64_t valid = std::min<int64_t>(W, tile.rows - row);
  const int64_t queries = std::min<int64_t>(W, tile.queries.count - lane);
  const bool whole = valid == W && queries == W;
  for (int i = 0; i < W; ++i) rows[i] = tile.sums + std::min(row + i, tile.rows - 1) * kStrip;
  const int64_t step = whole ? job.per_query : W;
  float* to = whole ? out : square;
  Simd::transpose(rows, lane, to, step);
  if (job.bias) {
    const V bias = load_lanes(job.bias + tile.row + row, valid);
    for (int j = 0; j < W; ++j, to += step) Simd::store(to, Simd::add(bias, Simd::load(to)));
  }
  if (whole) return;
  for (int64_t j = 0; j < queries; ++j)
    std::memcpy(out + j * job.per_query, square + j * W, sizeof(float) * valid);
}

inline void store_scores(const ScoresJob& job, const ScoreTile& tile, int64_t crop) {
  float* out = job.out + (crop * job.query.count + tile.queries.feature) * job.per_query + tile.row;
  for (int64_t lane = 0; lane < tile.queries.count; lane += Simd::W)
    for (int64_t row = 0; row < tile.rows; row += Simd::W)
      store_square(job, tile, row, lane, out + lane * job.per_query + row);
}

inline void score_strip(const ProductScoresJob& job, const Coefficients& rows, ScoreTile tile,
                        const float* packed, float* sums) {
  const int64_t vectors = vectors_of(tile.queries.count);
  float* ended = sums + tile.rows * kStrip;
  const float* known = nullptr;
  int64_t feature = 0;
  const auto add = [&](int64_t count, float* to) {
    product_strip({rows.data + feature, rows.row, 1}, tile.rows, vectors,
                  {packed + feature * kStrip, count, known, to, kStrip});
  };
  for (int64_t crop = 0; crop < job.crops.count; ++crop) {
    const int64_t end = job.crops.widths[crop];
    for (; feature + kDepth <= end; feature += kDepth, known = sums) add(kDepth, sums);
    const bool inside = feature < end;
    if (inside) add(end - feature, ended);
    tile.sums = inside ? ended : sums;
    store_scores(job, tile, crop);
  }
}

inline void score_rows(const ProductScoresJob& job, int64_t block, int64_t first, int64_t last,
                       float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const ProductScoresShape shape = product_scores_shape(job);
  ScoreTile tile{};
  tile.row = block * shape.rows;
  tile.rows = std::min(shape.rows, job.per_query - tile.row);
  const Coefficients rows = coefficients_of_rows(job, tile.row, tile.rows, scratch);
  const int64_t floats = job.num_features * kStrip;
  for (int64_t strip = first; strip < last; ++strip) {
    tile.queries = job.strips[strip];
    score_strip(job, rows, tile, job.packed + strip * floats, scratch + shape.copied);
  }
}

}  // namespace
}  // namespace kgfast
