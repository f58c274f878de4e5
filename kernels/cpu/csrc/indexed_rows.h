// Indexed scores and their gradients: rows are read where they stand, features in lanes.
//
// Cost model: memory. A pair reads one row, 4 KiB of random access at 512 complex features, for as
// few instructions as pairwise_sweep.h and pull.h count: 8 GB/s a core, where the arithmetic alone
// could take 80. Fetching the rows that come next changed nothing (measured). The backward reads a
// row once per pair for the queries' gradient, and once for its own, with the queries that name it.
//
// Order: a lane sums 64 terms at most, then a second level; the lanes as a tree; a query's pairs in
// the order of the index, a row's in the order of their positions. A crop's score has the bits of
// that crop alone: what stands in a vector beyond its end is taken as 0 for it.
#pragma once
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "fpmode.h"
#include "indexed.h"
#include "load.h"
#include "scores.h"
#include "store.h"

namespace kgfast {
namespace {

constexpr int kRows = 4;
constexpr int64_t kRun = 64;  // features converted at a time
constexpr int64_t kPullPairs = 64;

inline int64_t padded_features(int64_t features) { return (features + kRun - 1) / kRun * kRun; }

// kRows rows of a table, one run of features at a time: in place where they are plain float32.
template <class Score>
struct RowReader {
  static constexpr int P = Score::planes;
  const View& view;
  const int64_t* ids;  // kRows
  const bool direct;
  const float* at[kRows][P];
  alignas(64) float converted[kRows][P][kRun];

  RowReader(const View& rows, const int64_t* chosen)
      : view(rows), ids(chosen), direct(rows.dtype == DType::f32 && rows.step == 1) {}

  void load(int64_t feature, int64_t count) {
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < P; ++p) {
        at[r][p] = direct ? run_at<float>(view, ids[r], p, feature) : converted[r][p];
        if (!direct) load_floats(view, ids[r], p, feature, count, converted[r][p]);
      }
  }
};

// `count` < W floats, padded with zeros.
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

// A row as [planes][padded], times `sign`, zero beyond its features.
template <class Score>
inline void load_row(const View& view, int64_t row, int64_t features, float sign, float* out) {
  const int64_t padded = padded_features(features);
  for (int p = 0; p < Score::planes; ++p) {
    float* to = out + p * padded;
    load_floats(view, row, p, 0, features, to);
    for (int64_t i = 0; i < features; ++i) to[i] *= sign;
    for (int64_t i = features; i < padded; ++i) to[i] = 0.0f;
  }
}

// Writes the scores of kRows rows, of which `valid` exist, for a crop that ends here.
template <class Score>
inline void write_indexed(const IndexedJob& job, const V* sums, const int64_t* ids, int valid,
                          float* out) {
  alignas(64) float distances[Simd::W < kRows ? kRows : Simd::W] = {};
  for (int r = 0; r < kRows; ++r) distances[r] = sum_lanes(sums[r]);
  Simd::store(distances, Score::finish(Simd::load(distances)));
  for (int r = 0; r < valid; ++r)
    out[r] = (job.bias ? job.bias[ids[r]] : 0.0f) - distances[r];
}

// kRows rows against one query. `out`: where the scores of crop slot 0 go.
template <class Score>
void score_rows(const IndexedJob& job, const float* query, RowReader<Score>& rows, int valid,
                float* out) {
  constexpr int W = Simd::W, P = Score::planes;
  const int64_t padded = padded_features(job.num_features);
  const int64_t matrix = job.num_queries * job.per_query;
  int64_t crop = 0;
  V totals[kRows], sums[kRows], ended[kRows];
  for (int r = 0; r < kRows; ++r) totals[r] = sums[r] = Simd::zero();
  for (int64_t run = 0; run < job.num_features; run += kRun) {
    const int64_t count = std::min(kRun, job.num_features - run);
    rows.load(run, count);
    for (int64_t i = 0; i < count; i += W) {
      V q[P], c[P];
      for (; crop < job.num_widths && job.widths[crop] < run + i + W; ++crop) {
        const int64_t part = job.widths[crop] - run - i;
        for (int p = 0; p < P; ++p) q[p] = load_part(query + p * padded + run + i, part);
        for (int r = 0; r < kRows; ++r) {
          for (int p = 0; p < P; ++p) c[p] = load_part(rows.at[r][p] + i, part);
          ended[r] = Simd::add(totals[r], Score::add(sums[r], q, c));
        }
        write_indexed<Score>(job, ended, rows.ids, valid, out + job.slots[crop] * matrix);
      }
      if (crop == job.num_widths) return;
      for (int p = 0; p < P; ++p) q[p] = Simd::load(query + p * padded + run + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < P; ++p) c[p] = Simd::load(rows.at[r][p] + i);
        sums[r] = Score::add(sums[r], q, c);
      }
      if (job.widths[crop] != run + i + W) continue;
      for (int r = 0; r < kRows; ++r) ended[r] = Simd::add(totals[r], sums[r]);
      write_indexed<Score>(job, ended, rows.ids, valid, out + job.slots[crop++] * matrix);
    }
    if ((run / kRun + 1) % W) continue;
    for (int r = 0; r < kRows; ++r) {
      totals[r] = Simd::add(totals[r], sums[r]);
      sums[r] = Simd::zero();
    }
  }
}

template <class Score>
void score_query(const IndexedJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  load_row<Score>(job.query, row, job.num_features, Score::query_sign, scratch);
  const int64_t* index = job.index + row * job.per_query;
  for (int64_t k = first; k < last; k += kRows) {
    int64_t ids[kRows];
    for (int r = 0; r < kRows; ++r) ids[r] = index[std::min(k + r, last - 1)];
    RowReader<Score> rows(job.table, ids);
    score_rows<Score>(job, scratch, rows, static_cast<int>(std::min<int64_t>(kRows, last - k)),
                      job.out + row * job.per_query + k);
  }
}

// One row and those that pull at it: a query and its candidates, or a candidate and its queries.
struct Anchor {
  const float* values;  // [planes][padded]
  float* sums;          // likewise: its gradient
};

// What partners pull with from `feature` on; `grad[r]` points at the gradient of crop 0.
template <class Score>
inline void partner_coefficients(const ScoreGradient& grad, const float* const* at, int valid,
                                 int64_t feature, V* out) {
  for (int r = 0; r < kRows; ++r) {
    float sum = 0.0f;
    for (int64_t crop = 0; r < valid && crop < grad.num_crops; ++crop)
      if (grad.widths[crop] > feature) sum += at[r][crop * grad.crop_stride];
    out[r] = Simd::set1(sum * Score::pull_scale);
  }
}

template <class Score, bool AnchorIsQuery>
inline void pull_anchor(const V* g, const V* own, const V (*others)[Score::planes], V* sums) {
  V unused[Score::planes];
  for (V& v : unused) v = Simd::zero();
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if (AnchorIsQuery)
      Score::pull(g[r], own, others[r], sums, unused);
    else
      Score::pull(g[r], others[r], own, unused, sums);
  }
}

// Features [i, stop) of the reader's run, which begins at `run`.
template <class Score, bool AnchorIsQuery>
inline void pull_run(const RowReader<Score>& rows, const V* g, int64_t run, int64_t i,
                     int64_t stop, int64_t padded, const Anchor& anchor) {
  constexpr int W = Simd::W, P = Score::planes;
  for (; i < stop; i += W) {
    const int64_t left = stop - i;
    V own[P], others[kRows][P], sums[P];
    for (int p = 0; p < P; ++p) {
      const float* values = anchor.values + p * padded + run + i;
      own[p] = left < W ? load_part(values, left) : Simd::load(values);
      sums[p] = left < W ? load_part(anchor.sums + p * padded + run + i, left)
                         : Simd::load(anchor.sums + p * padded + run + i);
      for (int r = 0; r < kRows; ++r)
        others[r][p] = left < W ? load_part(rows.at[r][p] + i, left)
                                : Simd::load(rows.at[r][p] + i);
    }
    pull_anchor<Score, AnchorIsQuery>(g, own, others, sums);
    for (int p = 0; p < P; ++p) {
      float* to = anchor.sums + p * padded + run + i;
      if (left >= W) {
        Simd::store(to, sums[p]);
        continue;
      }
      float lanes[W];
      Simd::store(lanes, sums[p]);
      std::memcpy(to, lanes, sizeof(float) * left);
    }
  }
}

// kRows partners, of which `valid` exist, pull at the anchor.
template <class Score, bool AnchorIsQuery>
void pull_partners(const IndexedPullJob& job, RowReader<Score>& rows, const float* const* grads,
                   int valid, const Anchor& anchor) {
  const int64_t padded = padded_features(job.num_features);
  const int64_t* width = job.widths;
  V g[kRows];
  partner_coefficients<Score>(job.grad, grads, valid, 0, g);
  for (int64_t run = 0; run < job.num_features; run += kRun) {
    const int64_t count = std::min(kRun, job.num_features - run);
    rows.load(run, count);
    for (int64_t at = 0; at < count;) {
      const int64_t stop = std::min(count, *width - run);
      pull_run<Score, AnchorIsQuery>(rows, g, run, at, stop, padded, anchor);
      at = stop;
      if (run + at < *width || run + at == job.num_features) continue;
      partner_coefficients<Score>(job.grad, grads, valid, *width++, g);
    }
  }
}

// Sums of the anchor's gradient go to a second level and begin anew.
template <class Score>
inline void fold(int64_t features, float* sums, float* totals) {
  const int64_t count = Score::planes * padded_features(features);
  for (int64_t i = 0; i < count; i += Simd::W) {
    Simd::store(totals + i, Simd::add(Simd::load(totals + i), Simd::load(sums + i)));
    Simd::store(sums + i, Simd::zero());
  }
}

inline const float* gradient_at(const ScoreGradient& grad, int64_t row, int64_t column) {
  return grad.data + row * grad.row_stride + column * grad.column_stride;
}

// `count` partners pull at `row` of `view`; `partner(i)` names the i-th: its row and its gradient.
template <class Score, bool AnchorIsQuery, class Partner>
void pull_row(const IndexedPullJob& job, const View& view, int64_t row, const View& others,
              int64_t count, Partner partner, const View& out, int64_t out_row, float* scratch) {
  const int64_t features = job.num_features, padded = padded_features(features);
  const int64_t floats = Score::planes * padded;
  float *values = scratch, *sums = scratch + floats, *totals = scratch + 2 * floats;
  load_row<Score>(view, row, features, 1.0f, values);
  std::memset(sums, 0, sizeof(float) * 2 * floats);
  for (int64_t i = 0; i < count; i += kRows) {
    int64_t ids[kRows];
    const float* grads[kRows];
    for (int r = 0; r < kRows; ++r)
      std::tie(ids[r], grads[r]) = partner(std::min(i + r, count - 1));
    RowReader<Score> rows(others, ids);
    pull_partners<Score, AnchorIsQuery>(
        job, rows, grads, static_cast<int>(std::min<int64_t>(kRows, count - i)), {values, sums});
    if ((i + kRows) % kPullPairs == 0) fold<Score>(features, sums, totals);
  }
  fold<Score>(features, sums, totals);
  for (int p = 0; p < Score::planes; ++p)
    store_floats(out, out_row, p, 0, features, totals + p * padded);
}

template <class Score>
void pull_query(const IndexedPullJob& job, int64_t row, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t* index = job.index + row * job.per_query;
  const auto partner = [&](int64_t k) {
    return std::make_pair(index[k], gradient_at(job.grad, row, k));
  };
  pull_row<Score, true>(job, job.query, row, job.table, job.per_query, partner, job.grad_query,
                        row, scratch);
}

template <class Score>
void pull_id(const IndexedPullJob& job, int64_t position, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t* order = job.order + job.first[position];
  const auto partner = [&](int64_t i) {
    const int64_t row = order[i] / job.per_query;
    return std::make_pair(row, gradient_at(job.grad, row, order[i] % job.per_query));
  };
  pull_row<Score, false>(job, job.table, job.ids[position], job.query,
                         job.first[position + 1] - job.first[position], partner, job.grad_rows,
                         job.whole_table ? job.ids[position] : position, scratch);
}

}  // namespace
}  // namespace kgfast
