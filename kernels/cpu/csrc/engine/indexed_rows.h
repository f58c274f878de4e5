// Indexed scores: rows are read in place, with features in lanes.
//
// Cost model: memory. A pair reads one row, 4 KiB of random access at 512 complex features, for as
// few instructions as pairwise_sweep.h and pairwise_backward.h count. Rows to come are prefetched.
//
// Order: a lane's sums of 64 terms at most go to a second level; a tree adds the lanes. A crop's
// score has the bits of that crop alone: numbers of a vector beyond the crop's end count as 0.
#pragma once
#include <algorithm>
#include <cstring>

#include "engine/canonical.h"
#include "host/fpmode.h"
#include "host/scores.h"
#include "host/store.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr int kRows = 4;
constexpr int64_t kLaneTerms = 64;        // of a lane's sum before it goes to the second level
constexpr int64_t kFloatsFetched = 2048;  // between rows that are read and rows that are fetched

// R rows, one run of features at a time: in place where they are plain float32, and then prefetches
// the same run of later rows, if any. Turned: the rows are queries of a score with phases, and are
// turned after they are read.
template <class Score, int P, int R = kRows, bool Turned = false>
struct RowReader {
  const Rows& view;
  const int64_t *ids, *later;  // R each
  const bool direct;
  const float* at[R][P];
  alignas(64) float converted[R][P][kRun];

  RowReader(const Rows& rows, const int64_t* chosen, const int64_t* next = nullptr)
      : view(rows), ids(chosen), later(next), direct(!Turned && is_direct(rows)) {}

  void load(int64_t feature, int64_t count) {
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        at[r][p] = direct ? floats_at(view, ids[r], p, feature) : converted[r][p];
        if (!direct) load_plane(view, ids[r], p, feature, count, converted[r][p]);
        if (direct && later)
          for (int64_t i = 0; i < count; i += 16)
            __builtin_prefetch(floats_at(view, later[r], p, feature) + i, 0, 2);
      }
      if (Turned) turn_query<Score>(converted[r][0], kRun, count);
    }
  }
};

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

// Short sums of a query and kRows rows, a vector each; Squared: and of the squares of the rows.
template <class Score, bool Squared = false>
struct PairSums {
  static constexpr int N = Squared ? 2 * kRows : kRows;
  V at[N];

  void clear() { std::fill_n(at, N, Simd::zero()); }
  void add(const PairSums& other) {
    for (int r = 0; r < N; ++r) at[r] = Simd::add(at[r], other.at[r]);
  }
  // Adds features [i, stop) of the reader's run; `query` is at that run.
  template <bool Near, class Reader>
  bool add_vectors(const float* query, int64_t padded, const Reader& rows, int64_t i,
                   int64_t stop) {
    V worst = Simd::zero(), sums[N];
    std::copy(at, at + N, sums);
    const auto add = [&](int64_t count) __attribute__((always_inline)) {
      V q[Score::query_planes], c[Score::row_planes];
#pragma GCC unroll 5
      for (int p = 0; p < Score::query_planes; ++p)
        q[p] = load_lanes(query + p * padded + i, count);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
        for (int p = 0; p < Score::row_planes; ++p) c[p] = load_lanes(rows.at[r][p] + i, count);
        sums[r] = add_term<Score, Near>(sums[r], q, c, &worst);
        if constexpr (Squared) sums[kRows + r] = Simd::fma(c[0], c[0], sums[kRows + r]);
      }
    };
    for (; i + Simd::W <= stop; i += Simd::W) add(Simd::W);
    if (i < stop) add(stop - i);
    std::copy(sums, sums + N, at);
    return all_near(worst);
  }
};

// Adds as if all phases were near, and again if one is not; `near` keeps the guess for later.
template <class Score, bool Squared, class Reader>
inline void add_features(PairSums<Score, Squared>& sums, const float* query, int64_t padded,
                         const Reader& rows, int64_t i, int64_t stop, bool& near) {
  if (!Score::has_phase) {
    sums.template add_vectors<true>(query, padded, rows, i, stop);
    return;
  }
  if (near) {
    const PairSums<Score, Squared> before = sums;
    near = sums.template add_vectors<true>(query, padded, rows, i, stop);
    if (near) return;
    sums = before;
  }
  sums.template add_vectors<false>(query, padded, rows, i, stop);
}

// Writes the scores of kRows rows, of which `valid` exist, where a crop ends. Returns 0 unless
// scores need mend_scores.
template <class Score, bool Squared>
inline uint32_t write_indexed(const ScoresJob& job, const PairSums<Score, Squared>& sums,
                              int64_t features, const int64_t* ids, int valid, float* out) {
  alignas(64) float distances[Simd::W < kRows ? kRows : Simd::W] = {};
  uint32_t spoiled = 0;
  for (int r = 0; r < kRows; ++r) distances[r] = sum_of(sums.at[r]);
  V distance = Score::finish(Simd::load(distances));
  if constexpr (is_monotone<Score>) distance = nan_if_tiny(distance, features, &spoiled);
  Simd::store(distances, distance);
  for (int r = 0; r < valid; ++r) out[r] = (job.bias ? job.bias[ids[r]] : 0.0f) - distances[r];
  if constexpr (Squared)
    for (int r = 0; r < valid; ++r) job.squares[out - job.out + r] = sum_of(sums.at[kRows + r]);
  return spoiled & ((1u << kRows) - 1);
}

// Scores kRows rows, whose ids are `ids`. `out`: their place in crop 0. Returns 0 unless
// scores need mend_scores.
template <class Score, bool Squared, class Reader>
uint32_t score_rows(const ScoresJob& job, const float* query, Reader& rows, const int64_t* ids,
                    int valid, float* out) {
  const int64_t padded = padded_features(job.num_features);
  const int64_t matrix = job.query.count * job.per_query;
  PairSums<Score, Squared> totals, sums;
  totals.clear();
  sums.clear();
  bool near = true;
  int64_t crop = 0;
  uint32_t spoiled = 0;
  const int64_t step = rows.direct ? kLaneTerms * Simd::W : kRun;
  for (int64_t run = 0; run < job.num_features; run += step) {
    const int64_t count = std::min(step, job.num_features - run);
    rows.load(run, count);
    for (int64_t i = 0; i < count;) {
      const int64_t end = job.crops.widths[crop] - run;
      const int64_t whole = std::min(count, end) / Simd::W * Simd::W;
      add_features(sums, query + run, padded, rows, i, whole, near);
      i = whole;
      if (end > count) break;
      PairSums<Score, Squared> ended = sums;
      if (end > i) add_features(ended, query + run, padded, rows, i, end, near);
      ended.add(totals);
      spoiled |= write_indexed(job, ended, job.crops.widths[crop], ids, valid,
                               out + crop * matrix);
      if (++crop == job.crops.count) return spoiled;
    }
    if ((run + step) % (kLaneTerms * Simd::W)) continue;
    totals.add(sums);
    sums.clear();
  }
  return spoiled;
}

// Scores a query with its places [first, last).
template <class Score, bool Squared>
void score_query(const ScoresJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  load_query<Score>(job.query, row, job.num_features, Score::query_sign, scratch);
  const int64_t* index = job.index ? job.index + row * job.per_query : nullptr;
  const int64_t ahead =
      std::max<int64_t>(kFloatsFetched / (job.num_features * Score::row_planes), kRows);
  uint32_t spoiled = 0;
  for (int64_t k = first; k < last; k += kRows) {
    int64_t ids[2 * kRows];
    for (int r = 0; r < 2 * kRows; ++r) {
      const int64_t place = r < kRows ? std::min(k + r, last - 1)
                                      : std::min(k + r + ahead - kRows, job.per_query - 1);
      ids[r] = index ? index[place] : place;
    }
    // Without an index rows follow one another, and the processor fetches them by itself.
    RowReader<Score, Score::row_planes> rows(job.rows, ids, index ? ids + kRows : nullptr);
    const int valid = static_cast<int>(std::min<int64_t>(kRows, last - k));
    spoiled |= score_rows<Score, Squared>(job, scratch, rows, ids, valid,
                                          job.out + row * job.per_query + k);
  }
  if (!spoiled) return;
  const int64_t start = row * job.per_query + first;
  mend_scores(job, job.crops, job.bias, row, index ? index + first : nullptr, first, last - first,
              job.query.count * job.per_query, job.out + start);
}

}  // namespace
}  // namespace kgfast
