// Distances of a query and the rows that it names, under a bound: with the sweep's terms, rows read
// in place, features in lanes.
//
// Cost model: that of indexed_rows.h, memory. A product's row is read a second time, from the
// cache, for its norm, one instruction an element.
//
// Order: a lane sums 64 whole vectors and a part at most, and these sums go to a second level; a
// tree adds the lanes (host/listed.cpp counts the roundings).
#pragma once
#include "engine/indexed_rows.h"
#include "host/listed.h"

namespace kgfast {
namespace {

// A sweep's score whose rows are read in place. The rscf scores are not: canonical scores decide
// their lists.
template <class Score>
struct Listed : Score {
  static_assert(!Score::is_rscf, "an rscf score has no bound without its panels");
  static constexpr int row_planes = Score::planes;
};

// Adds the squares of `count` features of kRows rows.
template <class Reader>
inline void add_squares(V* sums, const Reader& rows, int64_t count) {
  for (int r = 0; r < kRows; ++r) {
    int64_t i = 0;
    for (; i + Simd::W <= count; i += Simd::W) {
      const V c = Simd::load(rows.at[r][0] + i);
      sums[r] = Simd::fma(c, c, sums[r]);
    }
    if (i == count) continue;
    const V c = load_part(rows.at[r][0] + i, count - i);
    sums[r] = Simd::fma(c, c, sums[r]);
  }
}

// Writes distances[k] and, for products, squares[k]: the sum of the row's squares.
template <class Score>
void list_distances(const SweepJob& job, int64_t query, const int64_t* ids, int64_t count,
                    float* scratch, float* distances, float* squares) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t features = job.num_features, padded = padded_features(features);
  load_query<Score>(job.query, query, features, Score::query_sign, scratch);
  for (int64_t k = 0; k < count; k += kRows) {
    const int valid = static_cast<int>(std::min<int64_t>(kRows, count - k));
    int64_t chosen[kRows];
    for (int r = 0; r < kRows; ++r) chosen[r] = ids[std::min(k + r, count - 1)];
    RowReader<Score, Score::row_planes> rows(job.rows, chosen);
    PairSums<Score, 1> totals, sums;
    totals.clear();
    sums.clear();
    V norms[kRows];
    for (V& norm : norms) norm = Simd::zero();
    bool near = true;
    for (int64_t run = 0; run < features; run += kRun) {
      const int64_t width = std::min(kRun, features - run), whole = width / Simd::W * Simd::W;
      rows.load(run, width);
      add_whole(sums, scratch + run, padded, rows, 0, whole, near);
      if (whole < width) sums.add_part(scratch + run, padded, rows, whole, width - whole);
      if constexpr (Score::terms == Terms::products) add_squares(norms, rows, width);
      if ((run + kRun) % (64 * Simd::W)) continue;
      totals.add(sums);
      sums.clear();
    }
    totals.add(sums);
    alignas(64) float lanes[Simd::W < kRows ? kRows : Simd::W] = {};
    for (int r = 0; r < kRows; ++r) lanes[r] = sum_lanes(totals.at[0][r]);
    Simd::store(lanes, Score::finish(Simd::load(lanes)));
    for (int r = 0; r < valid; ++r) {
      distances[k + r] = lanes[r];
      if constexpr (Score::terms == Terms::products) squares[k + r] = sum_lanes(norms[r]);
    }
  }
}

}  // namespace
}  // namespace kgfast
