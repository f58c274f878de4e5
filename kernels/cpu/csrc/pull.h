// The backward of pairwise scores: features in lanes, each pair pulls at its query and candidate.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 2 sub, 2 fma, rsqrt14 (3 operations) and
// its Newton step (4 with the coefficient), 4 fma: 15 on two ports, 7.5 cycles, 8.1 measured, and 10
// with all that surrounds it; l2 3, l1 5, dot 2 instructions. kGroup candidates and their gradients stay in registers while 32 queries and
// theirs stream from the first-level cache, 4 KiB a plane. A task owns up to kSpan floats of
// every row, so that a tile of coefficients is made once for several vectors of features;
// its lines, which stand a row of `grad` apart, are fetched one tile ahead.
//
// Order: sums of 32 queries (in registers) or 64 candidates (in `sums`) go to a second
// level. Who does which task is free: a candidate's gradient is one task's, a query's the stripes',
// added in their order.
#pragma once
#include <algorithm>
#include <cstring>

#include "fpmode.h"
#include "load.h"
#include "pairwise.h"
#include "scores.h"
#include "store.h"

namespace kgfast {
namespace {

constexpr int64_t kPullQueries = 32, kPullCandidates = 32, kPullSum = 64;
constexpr int kSpan = 64;  // floats of a row

template <class Score>
constexpr int kGroup = (Simd::W == 16 ? 8 : 4) / Score::planes;

// One feature block of a row as [planes][W], padded with zeros.
template <class Score>
inline void load_block(const View& view, int64_t row, const FeatureBlock& block, float* out) {
  for (int p = 0; p < Score::planes; ++p) {
    load_floats(view, row, p, block.feature, block.count, out + p * Simd::W);
    for (int64_t i = block.count; i < Simd::W; ++i) out[p * Simd::W + i] = 0.0f;
  }
}

template <class Score>
inline void store_block(const View& view, int64_t row, const FeatureBlock& block,
                        const float* from) {
  for (int p = 0; p < Score::planes; ++p)
    store_floats(view, row, p, block.feature, block.count, from + p * Simd::W);
}

inline void add_floats(float* sums, const float* terms, int64_t count) {  // a multiple of W
  for (int64_t i = 0; i < count; i += Simd::W)
    Simd::store(sums + i, Simd::add(Simd::load(sums + i), Simd::load(terms + i)));
}

// What a pair's features from `feature` on are pulled with: the sum over the crops that have them.
inline void load_coefficients(const ScoreGradient& grad, int64_t feature, float scale, int64_t row,
                              int64_t rows, int64_t column, int64_t columns,
                              float (&out)[kPullQueries][kPullCandidates]) {
  std::memset(out, 0, sizeof out);
  for (int64_t crop = 0; crop < grad.num_crops; ++crop) {
    if (grad.widths[crop] <= feature) continue;
    for (int64_t i = 0; i < rows; ++i) {
      const float* from = grad.data + crop * grad.crop_stride + (row + i) * grad.row_stride +
                          column * grad.column_stride;
      if (grad.column_stride == 1) {
        for (int64_t j = 0; j < columns; ++j) out[i][j] += scale * from[j];
      } else {
        for (int64_t j = 0; j < columns; ++j) out[i][j] += scale * from[j * grad.column_stride];
      }
    }
  }
}

// kGroup candidates against `rows` queries.
template <class Score, bool Q, bool C>
inline void pull_group(const float* queries, float* sums, int64_t rows,
                       const float (*coefficients)[kPullCandidates], int64_t first,
                       const float* candidates, float* totals) {
  constexpr int W = Simd::W, P = Score::planes, G = kGroup<Score>;
  V c[G][P], dc[G][P];
#pragma GCC unroll 8
  for (int j = 0; j < G; ++j)
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      c[j][p] = Simd::load(candidates + (j * P + p) * W);
      dc[j][p] = Simd::zero();
    }
  for (int64_t i = 0; i < rows; ++i) {
    V q[P], dq[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      q[p] = Simd::load(queries + (i * P + p) * W);
      dq[p] = Q ? Simd::load(sums + (i * P + p) * W) : Simd::zero();
    }
#pragma GCC unroll 8
    for (int j = 0; j < G; ++j)
      Score::pull(Simd::set1(coefficients[i][first + j]), q, c[j], dq, dc[j]);
#pragma GCC unroll 2
    for (int p = 0; Q && p < P; ++p) Simd::store(sums + (i * P + p) * W, dq[p]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < G; ++j)
#pragma GCC unroll 2
    for (int p = 0; C && p < P; ++p) {
      float* total = totals + (j * P + p) * W;
      Simd::store(total, Simd::add(Simd::load(total), dc[j][p]));
    }
}

inline void prefetch_coefficients(const ScoreGradient& grad, int64_t row, int64_t end,
                                  int64_t column) {
  for (int64_t i = row; i < std::min(row + kPullQueries, end); ++i)
    __builtin_prefetch(grad.data + i * grad.row_stride + column * grad.column_stride, 0, 2);
}

// The part of the rows that a task owns: `count` feature blocks.
struct Span {
  const FeatureBlock* blocks;
  int64_t count;
};

inline Span span_of(const PullJob& job, int64_t index) {
  const int64_t first = index * job.num_blocks / job.num_spans;
  return {job.blocks + first, (index + 1) * job.num_blocks / job.num_spans - first};
}

// Up to kPullCandidates candidates against all queries.
template <class Score, bool Q, bool C>
void pull_candidates(const PullJob& job, const Span& span, int64_t first, int64_t count,
                     PullWorker& worker) {
  constexpr int W = Simd::W, P = Score::planes;
  constexpr int64_t size = kPullCandidates * P * W;  // of one feature block
  alignas(64) float candidates[kPullCandidates * kSpan], totals[kPullCandidates * kSpan];
  alignas(64) float coefficients[kPullQueries][kPullCandidates];
  std::memset(candidates, 0, sizeof candidates);
  std::memset(totals, 0, sizeof totals);
  for (int64_t n = 0; n < span.count; ++n)
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = n * size + j * P * W;
      load_block<Score>(job.table, first + j, span.blocks[n], candidates + at);
      if (C && job.add_to_table)
        load_block<Score>(job.grad_table, first + j, span.blocks[n], totals + at);
    }
  for (int64_t row = 0; row < job.num_queries; row += kPullQueries) {
    const int64_t rows = std::min(kPullQueries, job.num_queries - row);
    for (int64_t n = 0; n < span.count; ++n) {
      if (n == 0 || span.blocks[n].begins_crop)
        load_coefficients(job.grad, span.blocks[n].feature, Score::pull_scale, row, rows, first,
                          count, coefficients);
      if (n == 0) prefetch_coefficients(job.grad, row + kPullQueries, job.num_queries, first);
      const int64_t at = (n * job.num_queries + row) * P * W;
      for (int64_t j = 0; j < count; j += kGroup<Score>)
        pull_group<Score, Q, C>(worker.queries + at, worker.sums + at, rows, coefficients, j,
                                candidates + n * size + j * P * W, totals + n * size + j * P * W);
    }
  }
  for (int64_t n = 0; C && n < span.count; ++n)
    for (int64_t j = 0; j < count; ++j)
      store_block<Score>(job.grad_table, first + j, span.blocks[n],
                         totals + n * size + j * P * W);
}

template <class Score>
inline void store_queries(const PullJob& job, const Span& span, const float* from) {
  constexpr int64_t size = Score::planes * Simd::W;
  for (int64_t row = 0; row < job.num_queries; ++row)
    for (int64_t n = 0; n < span.count; ++n)
      store_block<Score>(job.grad_query, row, span.blocks[n],
                         from + (n * job.num_queries + row) * size);
}

inline float* part_of(const PullJob& job, int64_t index, int64_t stripe) {
  return job.parts + (index * job.num_stripes + stripe) * job.num_queries * kSpan;
}

template <class Score, bool Q, bool C>
void pull_stripe(const PullJob& job, int64_t index, int64_t stripe, PullWorker& worker) {
  constexpr int64_t size = Score::planes * Simd::W;
  const FloatMode mode(FloatMode::kFlush);
  const Span span = span_of(job, index);
  const int64_t numbers = span.count * job.num_queries * size;
  const bool partial = Q && job.num_stripes > 1;
  float* totals = partial ? part_of(job, index, stripe) : worker.totals;
  for (int64_t row = 0; row < job.num_queries; ++row)
    for (int64_t n = 0; n < span.count; ++n)
      load_block<Score>(job.query, row, span.blocks[n],
                        worker.queries + (n * job.num_queries + row) * size);
  if (Q) {
    std::memset(worker.sums, 0, sizeof(float) * numbers);
    std::memset(totals, 0, sizeof(float) * numbers);
  }
  const int64_t begin = stripe * job.stripe;
  const int64_t end = std::min(begin + job.stripe, job.num_candidates);
  for (int64_t first = begin; first < end; first += kPullCandidates) {
    const int64_t next = std::min(first + kPullCandidates, end);
    prefetch_coefficients(job.grad, 0, job.num_queries, first);
    pull_candidates<Score, Q, C>(job, span, first, next - first, worker);
    if (!Q || ((next - begin) % kPullSum != 0 && next != end)) continue;
    add_floats(totals, worker.sums, numbers);
    std::memset(worker.sums, 0, sizeof(float) * numbers);
  }
  if (Q && !partial) store_queries<Score>(job, span, totals);
}

template <class Score>
void pull(const PullJob& job, int64_t index, int64_t stripe, PullWorker& worker) {
  if (!job.grad_table.data) return pull_stripe<Score, true, false>(job, index, stripe, worker);
  if (!job.grad_query.data) return pull_stripe<Score, false, true>(job, index, stripe, worker);
  pull_stripe<Score, true, true>(job, index, stripe, worker);
}

template <class Score>
void reduce_stripes(const PullJob& job, int64_t index) {
  const FloatMode mode(FloatMode::kFlush);
  const Span span = span_of(job, index);
  float* first = part_of(job, index, 0);
  for (int64_t stripe = 1; stripe < job.num_stripes; ++stripe)
    add_floats(first, part_of(job, index, stripe),
               span.count * job.num_queries * Score::planes * Simd::W);
  store_queries<Score>(job, span, first);
}

}  // namespace
}  // namespace kgfast
