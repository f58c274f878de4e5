// Indexed scores: rows are read in place, with features in lanes.
//
// Cost model: memory. A pair reads one row, 4 KiB of random access at 512 complex features, for as
// few instructions as pairwise_sweep.h and pairwise_backward.h count: 8 GB/s a core, where the
// arithmetic alone could take 80. Fetching the rows that come next changed nothing (measured).
//
// The rscf scores have no panels here, and serve pools in blocks too: kTile queries share kRows
// rows, and the 24 instructions of a pair hide the pair's reads.
//
// Order: a lane's sums of 64 terms at most go to a second level; a tree adds the lanes. A crop's
// score has the bits of that crop alone: numbers of a vector beyond the crop's end count as 0.
#pragma once
#include <algorithm>
#include <cstring>

#include "engine/canonical.h"
#include "engine/load_rows.h"
#include "host/fpmode.h"
#include "host/scores.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr int kRows = 4, kTile = Simd::W == 16 ? 4 : 2;
constexpr int64_t kRun = 128;  // features converted at a time

// Returns the features of a padded plane: whole runs, and a cache line more, so that planes of 2^n
// features do not meet in the same sets of the cache.
inline int64_t padded_features(int64_t features) {
  return (features + kRun - 1) / kRun * kRun + 16;
}

template <class Score>
inline int64_t query_floats(int64_t features) {
  return Score::query_planes * padded_features(features);
}

// R rows, one run of features at a time: in place where they are plain float32. Turned: the rows
// are queries of a score with phases, and are turned after they are read.
template <class Score, int P, int R = kRows, bool Turned = false>
struct RowReader {
  const Rows& view;
  const int64_t* ids;  // R
  const bool direct;
  const float* at[R][P];
  alignas(64) float converted[R][P][kRun];

  RowReader(const Rows& rows, const int64_t* chosen)
      : view(rows), ids(chosen), direct(!Turned && is_direct(rows)) {}

  void load(int64_t feature, int64_t count) {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        at[r][p] = direct ? floats_at(view, ids[r], p, feature) : converted[r][p];
        if (!direct) load_plane(view, ids[r], p, feature, count, converted[r][p]);
      }
      if (Turned) turn_query<Score>(converted[r][0], kRun, count);
    }
  }
};

// Loads `count` < W floats, padded with zeros.
inline V load_part(const float* from, int64_t count) {
  alignas(64) float lanes[Simd::W] = {};
  std::memcpy(lanes, from, sizeof(float) * count);
  return Simd::load(lanes);
}

inline float sum_lanes(V lanes) {
  float sums[Simd::W];
  Simd::store(sums, lanes);
  for (int half = Simd::W / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Loads a row as [planes][padded], zero beyond its features.
inline void load_row(const Rows& rows, int planes, int64_t row, int64_t features, float* out) {
  const int64_t padded = padded_features(features);
  for (int p = 0; p < planes; ++p) {
    float* to = out + p * padded;
    load_plane(rows, row, p, 0, features, to);
    std::memset(to + features, 0, sizeof(float) * (padded - features));
  }
}

// Returns a view of rows that load_row wrote.
inline Rows float_rows(const float* data, int planes, int64_t padded) {
  Rows rows;
  rows.view.data = reinterpret_cast<const char*>(data);
  rows.view.row_stride = planes * padded;
  for (int p = 0; p < planes; ++p) rows.view.start[p] = p * padded;
  rows.planes = planes;
  return rows;
}

// Loads a query, turned where the score has phases, times `sign`.
template <class Score>
inline void load_query(const View& view, int64_t row, int64_t features, float sign, float* out) {
  const int64_t padded = padded_features(features);
  load_row({view, {}, Score::query_planes}, Score::query_planes, row, features, out);
  turn_query<Score>(out, padded, padded);
  if (sign == 1.0f) return;
  for (int64_t i = 0; i < Score::query_planes * padded; ++i) out[i] *= sign;
}

// Short sums of A queries and kRows rows, a vector each.
template <class Score, int A>
struct PairSums {
  V at[A][kRows];

  void clear() {
    for (auto& row : at)
      for (V& sum : row) sum = Simd::zero();
  }
  void add(const PairSums& other) {
    for (int a = 0; a < A; ++a)
      for (int r = 0; r < kRows; ++r) at[a][r] = Simd::add(at[a][r], other.at[a][r]);
  }
  // Adds whole vectors [i, stop) of the reader's run; `query` is at that run of the first query.
  template <bool Near, class Reader>
  bool add_vectors(const float* query, int64_t padded, const Reader& rows, int64_t i,
                   int64_t stop) {
    V worst = Simd::zero(), sums[A][kRows];
    std::copy(&at[0][0], &at[0][0] + A * kRows, &sums[0][0]);
    for (; i < stop; i += Simd::W) {
#pragma GCC unroll 4
      for (int a = 0; a < A; ++a) {
        V q[Score::query_planes], c[Score::row_planes];
#pragma GCC unroll 5
        for (int p = 0; p < Score::query_planes; ++p)
          q[p] = Simd::load(query + (a * Score::query_planes + p) * padded + i);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
          for (int p = 0; p < Score::row_planes; ++p) c[p] = Simd::load(rows.at[r][p] + i);
          sums[a][r] = add_term<Score, Near>(sums[a][r], q, c, &worst);
        }
      }
    }
    std::copy(&sums[0][0], &sums[0][0] + A * kRows, &at[0][0]);
    return all_near(worst);
  }
  // Adds the first `part` < W features of a vector.
  template <class Reader>
  void add_part(const float* query, int64_t padded, const Reader& rows, int64_t i, int64_t part) {
    V q[Score::query_planes], c[Score::row_planes], unused = Simd::zero();
    for (int a = 0; a < A; ++a) {
      for (int p = 0; p < Score::query_planes; ++p)
        q[p] = load_part(query + (a * Score::query_planes + p) * padded + i, part);
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < Score::row_planes; ++p) c[p] = load_part(rows.at[r][p] + i, part);
        at[a][r] = add_term<Score, false>(at[a][r], q, c, &unused);
      }
    }
  }
};

// Adds as if all phases were near, and again if one is not; `near` keeps the guess for later.
template <class Score, int A, class Reader>
inline void add_whole(PairSums<Score, A>& sums, const float* query, int64_t padded,
                      const Reader& rows, int64_t i, int64_t stop, bool& near) {
  if (!Score::has_phase) {
    sums.template add_vectors<true>(query, padded, rows, i, stop);
    return;
  }
  if (near) {
    const PairSums<Score, A> before = sums;
    near = sums.template add_vectors<true>(query, padded, rows, i, stop);
    if (near) return;
    sums = before;
  }
  sums.template add_vectors<false>(query, padded, rows, i, stop);
}

// Writes the scores of A queries with kRows rows, of which `valid` exist, where a crop ends.
// Returns 0 unless scores need mend_scores.
template <class Score, int A>
inline uint32_t write_indexed(const ScoresJob& job, const PairSums<Score, A>& sums,
                              int64_t features, const int64_t* ids, int valid, float* out) {
  alignas(64) float distances[Simd::W < kRows ? kRows : Simd::W] = {};
  uint32_t spoiled = 0;
  for (int a = 0; a < A; ++a, out += job.per_query) {
    for (int r = 0; r < kRows; ++r) distances[r] = sum_lanes(sums.at[a][r]);
    V distance = Score::finish(Simd::load(distances));
    if constexpr (is_monotone<Score>) distance = nan_if_tiny(distance, features, &spoiled);
    Simd::store(distances, distance);
    for (int r = 0; r < valid; ++r)
      out[r] = (job.bias ? job.bias[ids[r]] : 0.0f) - distances[r];
  }
  return spoiled & ((1u << kRows) - 1);
}

// Scores kRows rows, whose ids are `ids`, with A queries. `out`: place of the first query's scores
// in crop slot 0. Returns 0 unless scores need mend_scores.
template <class Score, int A, class Reader>
uint32_t score_rows(const ScoresJob& job, const float* query, Reader& rows, const int64_t* ids,
                int valid, float* out) {
  const int64_t padded = padded_features(job.num_features);
  const int64_t matrix = job.query.count * job.per_query;
  PairSums<Score, A> totals, sums;
  totals.clear();
  sums.clear();
  bool near = true;
  int64_t crop = 0;
  uint32_t spoiled = 0;
  for (int64_t run = 0; run < job.num_features; run += kRun) {
    const int64_t count = std::min(kRun, job.num_features - run);
    rows.load(run, count);
    for (int64_t i = 0; i < count;) {
      const int64_t end = job.crops.widths[crop] - run;
      const int64_t whole = std::min(count, end) / Simd::W * Simd::W;
      add_whole(sums, query + run, padded, rows, i, whole, near);
      i = whole;
      if (end > count) break;
      PairSums<Score, A> ended = sums;
      if (end > i) ended.add_part(query + run, padded, rows, i, end - i);
      ended.add(totals);
      spoiled |= write_indexed(job, ended, job.crops.widths[crop], ids, valid,
                               out + job.crops.slots[crop] * matrix);
      if (++crop == job.crops.count) return spoiled;
    }
    if ((run + kRun) % (64 * Simd::W)) continue;
    totals.add(sums);
    sums.clear();
  }
  return spoiled;
}

// Calls mend_scores for a query's places [first, last).
inline void mend_places(const ScoresJob& job, int64_t row, int64_t first, int64_t last) {
  const int64_t start = row * job.per_query + first;
  mend_scores(job, job.crops, job.bias, row, job.index ? job.index + start : nullptr, first,
              last - first, job.query.count * job.per_query, job.out + start);
}

template <class Score>
void score_query(const ScoresJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  load_query<Score>(job.query, row, job.num_features, Score::query_sign, scratch);
  const int64_t* index = job.index + row * job.per_query;
  uint32_t spoiled = 0;
  for (int64_t k = first; k < last; k += kRows) {
    int64_t ids[kRows];
    for (int r = 0; r < kRows; ++r) ids[r] = index[std::min(k + r, last - 1)];
    RowReader<Score, Score::row_planes> rows(job.rows, ids);
    spoiled |= score_rows<Score, 1>(job, scratch, rows, ids,
                                    static_cast<int>(std::min<int64_t>(kRows, last - k)),
                                    job.out + row * job.per_query + k);
  }
  if (spoiled) mend_places(job, row, first, last);
}

// Returns the floats of a tile of queries and, unless rows are plain float32, of their copies.
template <class Score>
inline int64_t block_scratch(const ScoresJob& job, int64_t rows) {
  const int64_t padded = padded_features(job.num_features);
  const int64_t copied = is_direct(job.rows) ? 0 : rows * Score::row_planes * padded;
  return kTile * query_floats<Score>(job.num_features) + copied;
}

template <class Score, int A>
void score_tile(const ScoresJob& job, int64_t row, const Rows& rows, int64_t begins, int64_t first,
                int64_t last, float* queries) {
  for (int a = 0; a < A; ++a)
    load_query<Score>(job.query, row + a, job.num_features, Score::query_sign,
                      queries + a * query_floats<Score>(job.num_features));
  uint32_t spoiled = 0;
  for (int64_t k = first; k < last; k += kRows) {
    int64_t ids[kRows], places[kRows];
    for (int r = 0; r < kRows; ++r) {
      ids[r] = std::min(k + r, last - 1);
      places[r] = ids[r] - begins;
    }
    RowReader<Score, Score::row_planes> reader(rows, places);
    spoiled |= score_rows<Score, A>(job, queries, reader, ids,
                                    static_cast<int>(std::min<int64_t>(kRows, last - k)),
                                    job.out + row * job.per_query + k);
  }
  for (int a = 0; spoiled && a < A; ++a) mend_places(job, row + a, first, last);
}

template <class Score>
void score_block(const ScoresJob& job, int64_t row, int64_t end, int64_t first, int64_t last,
                 float* scratch) {
  constexpr int R = Score::row_planes;
  const FloatMode mode(FloatMode::kFlush);
  const int64_t padded = padded_features(job.num_features);
  float* copied = scratch + kTile * query_floats<Score>(job.num_features);
  Rows rows = job.rows;
  int64_t begins = 0;
  if (!is_direct(rows)) {
    for (int64_t k = first; k < last; ++k)
      load_row(job.rows, R, k, job.num_features, copied + (k - first) * R * padded);
    rows = float_rows(copied, R, padded);
    begins = first;
  }
  for (; row + kTile <= end; row += kTile)
    score_tile<Score, kTile>(job, row, rows, begins, first, last, scratch);
  for (; row < end; ++row) score_tile<Score, 1>(job, row, rows, begins, first, last, scratch);
}

}  // namespace
}  // namespace kgfast
