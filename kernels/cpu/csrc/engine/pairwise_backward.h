// The backward of pairwise scores: features in lanes, each pair pulls at its query and candidate.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 2 sub, 2 fma, rsqrt14 (3 operations) and
// its Newton step (4 with the coefficient), 4 fma: 15 on two ports, 7.5 cycles, 8.1 measured, and
// 10 with all that surrounds it; l2 3, l1 5, dot 2 instructions, rscf_rotate 39. A group of candidates
// and their gradients stay in registers while 32 queries and theirs stream from the first-level
// cache, 4 KiB a plane. A task owns about kSpan floats of every row, so that a tile of coefficients
// is made once for several vectors of features; its lines, which stand a row of `grad` apart, are
// fetched one tile ahead.
//
// Order: sums of 32 queries (in registers) or 64 candidates (in `sums`) go to a second
// level. Who does which task is free: a candidate's gradient is one task's, a query's the stripes',
// added in their order.
#pragma once
#include <algorithm>
#include <cstring>

#include "host/fpmode.h"
#include "engine/load_rows.h"
#include "host/pairwise.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr int64_t kPullQueries = 32, kPullCandidates = 32, kPullSum = 64;
constexpr int kSpan = 64;  // floats of a query, where they make a vector of each plane

template <class Score>
constexpr int kBlocks =  // of a span
    Score::query_planes * Simd::W < kSpan ? kSpan / (Score::query_planes * Simd::W) : 1;

// One feature block of a row as [planes][W], padded with zeros.
template <int planes>
inline void load_block(const Rows& rows, int64_t row, const FeatureBlock& block, float* out) {
  for (int p = 0; p < planes; ++p) {
    load_plane(rows, row, p, block.feature, block.count, out + p * Simd::W);
    for (int64_t i = block.count; i < Simd::W; ++i) out[p * Simd::W + i] = 0.0f;
  }
}

// The same of gradients, where they are wanted.
template <int planes>
inline void load_wanted(const Rows& rows, int64_t row, const FeatureBlock& block, float* out) {
  for (int p = 0; p < planes; ++p)
    if ((p < rows.planes ? rows.view : rows.factor).data)
      load_plane(rows, row, p, block.feature, block.count, out + p * Simd::W);
}

template <int planes>
inline void store_block(const Rows& rows, int64_t row, const FeatureBlock& block,
                        const float* from) {
  for (int p = 0; p < planes; ++p)
    store_plane(rows, row, p, block.feature, block.count, from + p * Simd::W);
}

// A query, which a score with phases turns beforehand, and its gradient, which is turned back.
template <class Score>
inline void load_query_block(const PullJob& job, int64_t row, const FeatureBlock& block,
                             float* out) {
  load_block<Score::query_planes>({job.query, {}, Score::query_planes}, row, block, out);
  turn_query<Score>(out, Simd::W, Simd::W);
}

template <class Score>
inline void store_query_block(const PullJob& job, int64_t row, const FeatureBlock& block,
                              const float* from) {
  constexpr int P = Score::query_planes;
  float turned[P * Simd::W];
  std::memcpy(turned, from, sizeof turned);
  if constexpr (Score::has_phase) {
    float a[Simd::W] = {};
    load_floats(job.query, row, P - 1, block.feature, block.count, a);
    turn_gradient<Score>(a, turned, Simd::W, Simd::W);
  }
  store_block<P>({job.grad_query, {}, P}, row, block, turned);
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

// Whether all phases of a group with `rows` queries are near.
template <class Score>
inline bool group_is_near(const float* queries, int64_t rows, const float* candidates) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes;
  V largest = Simd::zero(), spread = Simd::zero();
  for (int64_t i = 0; i < rows; ++i)
    largest = Simd::max(largest, Simd::abs(Simd::load(queries + (i * P + P - 1) * W)));
  for (int j = 0; j < Score::group; ++j) {
    const V b = Simd::load(candidates + (j * R + R - 1) * W);
    spread = Simd::max(spread, Simd::abs(Simd::sub(b, Simd::set1(1.0f))));
  }
  return all_near(phase_square(largest, spread));
}

// The gradients that are wanted, one at least.
struct Wanted {
  bool queries, rows;
  int index() const { return queries + queries * rows; }  // rows, queries, both
};

// A group of candidates against `rows` queries.
template <class Score, bool Q, bool C, bool Near>
void pull_group(const float* queries, float* sums, int64_t rows,
                const float (*coefficients)[kPullCandidates], int64_t first,
                const float* candidates, float* totals) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes, G = Score::group;
  V c[G][R], dc[G][R], unused = Simd::zero();
#pragma GCC unroll 8
  for (int j = 0; j < G; ++j)
#pragma GCC unroll 3
    for (int p = 0; p < R; ++p) {
      c[j][p] = Simd::load(candidates + (j * R + p) * W);
      dc[j][p] = Simd::zero();
    }
  for (int64_t i = 0; i < rows; ++i) {
    V q[P], dq[P];
#pragma GCC unroll 5
    for (int p = 0; p < P; ++p) {
      q[p] = Simd::load(queries + (i * P + p) * W);
      dq[p] = Q ? Simd::load(sums + (i * P + p) * W) : Simd::zero();
    }
#pragma GCC unroll 8
    for (int j = 0; j < G; ++j)
      pull_term<Score, Near>(Simd::set1(coefficients[i][first + j]), q, c[j], dq, dc[j], &unused);
#pragma GCC unroll 5
    for (int p = 0; Q && p < P; ++p) Simd::store(sums + (i * P + p) * W, dq[p]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < G; ++j)
#pragma GCC unroll 3
    for (int p = 0; C && p < R; ++p) {
      float* total = totals + (j * R + p) * W;
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

// The same where Q and C, whether the gradients of queries and of candidates are wanted, and
// whether all phases are near are known at run time only.
template <class Score>
inline void pull_wanted(const Wanted& wanted, const float* queries, float* sums, int64_t rows,
                        const float (*coefficients)[kPullCandidates], int64_t first,
                        const float* candidates, float* totals) {
  using Pull = void (*)(const float*, float*, int64_t, const float (*)[kPullCandidates], int64_t,
                        const float*, float*);
  constexpr Pull nears[] = {pull_group<Score, false, true, true>,
                            pull_group<Score, true, false, true>,
                            pull_group<Score, true, true, true>};
  Pull pull = nears[wanted.index()];
  if constexpr (Score::has_phase) {
    constexpr Pull anys[] = {pull_group<Score, false, true, false>,
                             pull_group<Score, true, false, false>,
                             pull_group<Score, true, true, false>};
    if (!group_is_near<Score>(queries, rows, candidates)) pull = anys[wanted.index()];
  }
  pull(queries, sums, rows, coefficients, first, candidates, totals);
}

// Up to kPullCandidates candidates against all queries.
template <class Score>
void pull_candidates(const PullJob& job, const Wanted& wanted, const Span& span, int64_t first,
                     int64_t count, PullWorker& worker) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes;
  constexpr int64_t size = kPullCandidates * R * W;  // of one feature block
  alignas(64) float candidates[kBlocks<Score> * size], totals[kBlocks<Score> * size];
  alignas(64) float coefficients[kPullQueries][kPullCandidates];
  std::memset(candidates, 0, sizeof candidates);
  std::memset(totals, 0, sizeof totals);
  for (int64_t n = 0; n < span.count; ++n)
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = n * size + j * R * W;
      load_block<R>(job.rows, first + j, span.blocks[n], candidates + at);
      if (wanted.rows && job.add_to_rows)
        load_wanted<R>(job.grad_rows, first + j, span.blocks[n], totals + at);
    }
  for (int64_t row = 0; row < job.num_queries; row += kPullQueries) {
    const int64_t rows = std::min(kPullQueries, job.num_queries - row);
    for (int64_t n = 0; n < span.count; ++n) {
      if (n == 0 || span.blocks[n].begins_crop)
        load_coefficients(job.grad, span.blocks[n].feature, Score::pull_scale, row, rows, first,
                          count, coefficients);
      if (n == 0) prefetch_coefficients(job.grad, row + kPullQueries, job.num_queries, first);
      const float* queries = worker.queries + (n * job.num_queries + row) * P * W;
      float* sums = worker.sums + (n * job.num_queries + row) * P * W;
      for (int64_t j = 0; j < count; j += Score::group) {
        const int64_t at = n * size + j * R * W;
        pull_wanted<Score>(wanted, queries, sums, rows, coefficients, j, candidates + at,
                           totals + at);
      }
    }
  }
  for (int64_t n = 0; wanted.rows && n < span.count; ++n)
    for (int64_t j = 0; j < count; ++j)
      store_block<R>(job.grad_rows, first + j, span.blocks[n], totals + n * size + j * R * W);
}

template <class Score>
inline void store_queries(const PullJob& job, const Span& span, const float* from) {
  constexpr int64_t size = Score::query_planes * Simd::W;
  for (int64_t row = 0; row < job.num_queries; ++row)
    for (int64_t n = 0; n < span.count; ++n)
      store_query_block<Score>(job, row, span.blocks[n],
                               from + (n * job.num_queries + row) * size);
}

template <class Score>
inline float* part_of(const PullJob& job, int64_t index, int64_t stripe) {
  constexpr int64_t floats = kBlocks<Score> * Score::query_planes * Simd::W;
  return job.parts + (index * job.num_stripes + stripe) * job.num_queries * floats;
}

template <class Score>
void pull(const PullJob& job, int64_t index, int64_t stripe, PullWorker& worker) {
  constexpr int64_t size = Score::query_planes * Simd::W;
  const Wanted wanted{job.grad_query.data != nullptr,
                      job.grad_rows.view.data || job.grad_rows.factor.data};
  const FloatMode mode(FloatMode::kFlush);
  const Span span = span_of(job, index);
  const int64_t numbers = span.count * job.num_queries * size;
  const bool partial = wanted.queries && job.num_stripes > 1;
  float* totals = partial ? part_of<Score>(job, index, stripe) : worker.totals;
  for (int64_t row = 0; row < job.num_queries; ++row)
    for (int64_t n = 0; n < span.count; ++n)
      load_query_block<Score>(job, row, span.blocks[n],
                              worker.queries + (n * job.num_queries + row) * size);
  if (wanted.queries) {
    std::memset(worker.sums, 0, sizeof(float) * numbers);
    std::memset(totals, 0, sizeof(float) * numbers);
  }
  const int64_t begin = stripe * job.stripe;
  const int64_t end = std::min(begin + job.stripe, job.num_candidates);
  for (int64_t first = begin; first < end; first += kPullCandidates) {
    const int64_t next = std::min(first + kPullCandidates, end);
    prefetch_coefficients(job.grad, 0, job.num_queries, first);
    pull_candidates<Score>(job, wanted, span, first, next - first, worker);
    if (!wanted.queries || ((next - begin) % kPullSum != 0 && next != end)) continue;
    add_floats(totals, worker.sums, numbers);
    std::memset(worker.sums, 0, sizeof(float) * numbers);
  }
  if (wanted.queries && !partial) store_queries<Score>(job, span, totals);
}

template <class Score>
void reduce_stripes(const PullJob& job, int64_t index) {
  const FloatMode mode(FloatMode::kFlush);
  const Span span = span_of(job, index);
  float* first = part_of<Score>(job, index, 0);
  for (int64_t stripe = 1; stripe < job.num_stripes; ++stripe)
    add_floats(first, part_of<Score>(job, index, stripe),
               span.count * job.num_queries * Score::query_planes * Simd::W);
  store_queries<Score>(job, span, first);
}

}  // namespace
}  // namespace kgfast
