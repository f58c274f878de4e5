// The gradients of indexed scores: each row sums what its partners add to it, features in lanes.
//
// Cost model: memory, and the instructions that pairwise_backward.h counts, twice.
//
// Order: sums of 64 pairs, in the order of the index, go to a second level.
#pragma once
#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "engine/indexed_rows.h"
#include "host/backward.h"
#include "host/fpmode.h"
#include "host/store.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerSum = 64;

// One row whose gradient is computed: a query, or a candidate. Its partners are the candidates of
// the query, or the queries of the candidate.
struct Anchor {
  const float* values;  // [planes][padded]
  float* sums;          // [planes][padded]: the gradient of these values
};

// Computes the factors of partners' terms from `feature` on; `at[r]` points at the gradient of crop
// 0.
template <class Score, int R>
inline void partner_coefficients(const ScoreGradient& grad, const float* const (&at)[R],
                                 int64_t feature, V (&out)[R]) {
  for (int r = 0; r < R; ++r) {
    float sum = 0.0f;
    for (int64_t crop = 0; crop < grad.num_crops; ++crop)
      if (grad.widths[crop] > feature) sum += at[r][crop * grad.crop_stride];
    out[r] = Simd::set1(sum * Score::grad_scale);
  }
}

// Adds the terms of R partners to a vector of the anchor's gradient, `sums`.
template <class Score, bool AnchorIsQuery, bool Near, int R, int Theirs>
inline Extremes add_partners(const V (&g)[R], const V* anchor, const V (&others)[R][Theirs],
                             V* sums) {
  V unused[Theirs];
  Extremes met;
  for (V& v : unused) v = Simd::zero();
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    if (AnchorIsQuery)
      backward_term<Score, Near>(g[r], anchor, others[r], sums, unused, &met);
    else
      backward_term<Score, Near>(g[r], others[r], anchor, unused, sums, &met);
  }
  return met;
}

// From kPastEnd + 16 - n: 0 in the first n lanes, 1 in those past them.
constexpr float kPastEnd[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Adds features [i, stop) of the reader's run, which begins at `run`.
template <class Score, bool AnchorIsQuery, int R, class Reader>
inline void backward_run(const Reader& rows, const V (&g)[R], int64_t run, int64_t i,
                         int64_t stop, int64_t padded, const Anchor& anchor) {
  constexpr int P = AnchorIsQuery ? Score::query_planes : Score::row_planes;
  constexpr int T = AnchorIsQuery ? Score::row_planes : Score::query_planes;
  for (; i < stop; i += Simd::W) {
    const int64_t left = stop - i;
    V of_anchor[P], others[R][T], sums[P], before[P];
#pragma GCC unroll 5
    for (int p = 0; p < P; ++p) {
      const float* values = anchor.values + p * padded + run + i;
      const float* from = anchor.sums + p * padded + run + i;
      of_anchor[p] = load_lanes(values, left);
      before[p] = sums[p] = load_lanes(from, left);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 5
      for (int p = 0; p < T; ++p) others[r][p] = load_lanes(rows.at[r][p] + i, left);
    if (Score::has_near && left < Simd::W)  // lanes past the end differ by 1, which is usual
      for (int r = 0; r < (AnchorIsQuery ? 1 : R); ++r) {
        V& part = AnchorIsQuery ? of_anchor[0] : others[r][0];
        part = Simd::add(part, Simd::load(kPastEnd + 16 - left));
      }
    const Extremes met = add_partners<Score, AnchorIsQuery, true>(g, of_anchor, others, sums);
    if (Score::has_near && !all_near<Score>(met)) {
      std::copy(before, before + P, sums);
      add_partners<Score, AnchorIsQuery, false>(g, of_anchor, others, sums);
    }
#pragma GCC unroll 5
    for (int p = 0; p < P; ++p) store_lanes(anchor.sums + p * padded + run + i, sums[p], left);
  }
}

// Adds R partners to the anchor's gradient; partners' gradients of crop 0 are at `grads`.
template <class Score, bool AnchorIsQuery, int R, class Reader>
void backward_partners(const IndexedBackwardJob& job, Reader& rows,
                       const float* const (&grads)[R], const Anchor& anchor) {
  const int64_t padded = padded_features(job.num_features);
  const int64_t* width = job.grad.widths;
  V g[R];
  partner_coefficients<Score>(job.grad, grads, 0, g);
  for (int64_t run = 0; run < job.num_features; run += kRun) {
    const int64_t count = std::min(kRun, job.num_features - run);
    rows.load(run, count);
    for (int64_t at = 0; at < count;) {
      const int64_t stop = std::min(count, *width - run);
      backward_run<Score, AnchorIsQuery>(rows, g, run, at, stop, padded, anchor);
      at = stop;
      if (run + at < *width || run + at == job.num_features) continue;
      partner_coefficients<Score>(job.grad, grads, *width++, g);
    }
  }
}

// Adds `count` floats of the anchor's gradient to the second level, and clears them.
inline void carry(int64_t count, float* sums, float* totals) {
  for (int64_t i = 0; i < count; i += Simd::W) {
    Simd::store(totals + i, Simd::add(Simd::load(totals + i), Simd::load(sums + i)));
    Simd::store(sums + i, Simd::zero());
  }
}

inline const float* gradient_at(const ScoreGradient& grad, int64_t row, int64_t column) {
  return grad.data + row * grad.row_stride + column * grad.column_stride;
}

// Adds partners [i, i + R).
template <class Score, bool AnchorIsQuery, int R, bool Turned, class Partner>
void backward_some(const IndexedBackwardJob& job, const Rows& others, int64_t i, Partner partner,
                   const Anchor& anchor) {
  constexpr int T = AnchorIsQuery ? Score::row_planes : Score::query_planes;
  int64_t ids[R];
  const float* grads[R];
  for (int r = 0; r < R; ++r) std::tie(ids[r], grads[r]) = partner(i + r);
  RowReader<Score, T, R, Turned> rows(others, ids);
  backward_partners<Score, AnchorIsQuery>(job, rows, grads, anchor);
}

// Adds `count` partners to the anchor's gradient, and returns the sums. The scratch begins with the
// anchor's values, [planes][padded]. partner(i) returns the i-th partner's row of `others` and its
// gradient. Many rows have one partner only, so a rest of kRows comes one by one.
template <class Score, bool AnchorIsQuery, bool Turned = false, class Partner>
float* backward_all(const IndexedBackwardJob& job, const Rows& others, int64_t count,
                    Partner partner, float* scratch) {
  const int64_t floats = padded_features(job.num_features) *
                         (AnchorIsQuery ? Score::query_planes : Score::row_planes);
  float *sums = scratch + floats, *totals = scratch + 2 * floats;
  const Anchor anchor{scratch, sums};
  std::memset(sums, 0, sizeof(float) * 2 * floats);
  for (int64_t i = 0; i < count;) {
    if (!Turned && count - i >= kRows) {
      backward_some<Score, AnchorIsQuery, Turned ? 1 : kRows, Turned>(job, others, i, partner,
                                                                      anchor);
      i += kRows;
    } else {
      backward_some<Score, AnchorIsQuery, 1, Turned>(job, others, i++, partner, anchor);
    }
    if (i % kPairsPerSum == 0) carry(floats, sums, totals);
  }
  carry(floats, sums, totals);
  return totals;
}

template <class Score>
void backward_query(const IndexedBackwardJob& job, int64_t row, float* scratch) {
  constexpr int P = Score::query_planes;
  const FloatMode mode(FloatMode::kFlush);
  const int64_t padded = padded_features(job.num_features);
  const int64_t* index = job.index + row * job.per_query;
  const auto partner = [&](int64_t k) {
    return std::make_pair(index[k], gradient_at(job.grad, row, k));
  };
  load_query<Score>(job.query, row, job.num_features, 1.0f, scratch);
  float* sums = backward_all<Score, true>(job, job.rows, job.per_query, partner, scratch);
  turn_gradient<Score>(scratch + (P - 1) * padded, sums, padded, padded);
  for (int p = 0; p < P; ++p)
    store_floats(job.grad_query, row, p, 0, job.num_features, sums + p * padded);
}

template <class Score>
void backward_row(const IndexedBackwardJob& job, int64_t position, float* scratch) {
  constexpr int P = Score::query_planes, R = Score::row_planes;
  const FloatMode mode(FloatMode::kFlush);
  const int64_t padded = padded_features(job.num_features);
  const RowGroups& groups = job.groups;
  const int64_t count = groups.first[position + 1] - groups.first[position];
  const int64_t* order = groups.order + groups.first[position];
  const auto partner = [&](int64_t i) {
    const int64_t row = order[i] / job.per_query;
    return std::make_pair(row, gradient_at(job.grad, row, order[i] % job.per_query));
  };
  load_row(job.rows, R, groups.ids[position], job.num_features, scratch);
  Rows queries{job.query, {}, P};
  if (job.turned) queries = float_rows(job.turned, P, padded);
  const bool turn = Score::has_phase && !job.turned;
  const float* sums =
      turn ? backward_all<Score, false, Score::has_phase>(job, queries, count, partner, scratch)
           : backward_all<Score, false>(job, queries, count, partner, scratch);
  const int64_t to = groups.whole_table ? groups.ids[position] : position;
  for (int p = 0; p < R; ++p)
    store_plane(job.grad_rows, to, p, 0, job.num_features, sums + p * padded);
}

}  // namespace
}  // namespace kgfast
