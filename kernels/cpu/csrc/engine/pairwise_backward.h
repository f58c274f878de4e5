// The backward of pairwise scores, with features in lanes: each pair adds to the gradients of the
// pair's query and candidate.
//
// Cost model (rotate, AVX-512): per vector of 16 elements 2 sub, 2 fma, rsqrt14 (3 operations) and
// its Newton step (4 with the coefficient), 4 fma: 15 on two ports, 7.5 cycles, and 10 with all
// other work; l2 3, l1 5, rscf_rotate 41 instructions. A group of candidates and their gradients
// stay in registers while 32 queries and the queries' gradients stream from the first-level cache.
// A task takes a slice of the features, about kSlice floats of every row. The lines of a tile
// are fetched one tile ahead.
//
// Order: sums of 32 queries (in registers) or 64 candidates (in `sums`) go to a second level, and
// a query's gradients by the ranges of candidates are added in the order of the ranges.
#pragma once
#include <algorithm>
#include <cstring>

#include "host/backward.h"
#include "host/fpmode.h"
#include "host/store.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr int64_t kTileQueries = 32, kTileCandidates = 32, kTileSum = 64;
constexpr int kSlice = 64;  // floats of a query in a slice, but at least a vector of each plane

template <class Score>
constexpr int kBlocks =  // blocks of a slice
    Score::query_planes * Simd::W < kSlice ? kSlice / (Score::query_planes * Simd::W) : 1;

template <class Score>
constexpr SliceShape slice_shape() {
  return {Simd::W, kBlocks<Score>, kBlocks<Score> * Score::query_planes * Simd::W};
}

// Loads one feature block of a row as [planes][W], padded with zeros.
template <int planes>
inline void load_block(const Rows& rows, int64_t row, const FeatureBlock& block, float* out) {
  for (int p = 0; p < planes; ++p) {
    load_plane(rows, row, p, block.feature, block.count, out + p * Simd::W);
    for (int64_t i = block.count; i < Simd::W; ++i) out[p * Simd::W + i] = 0.0f;
  }
}

template <int planes>
inline void store_block(const Rows& rows, int64_t row, const FeatureBlock& block,
                        const float* from) {
  for (int p = 0; p < planes; ++p)
    store_plane(rows, row, p, block.feature, block.count, from + p * Simd::W);
}

// Loads a query, which a score with phases turns; store_query_block turns the gradient back.
template <class Score>
inline void load_query_block(const PairwiseBackwardJob& job, int64_t row,
                             const FeatureBlock& block, float* out) {
  load_block<Score::query_planes>({job.query, {}, Score::query_planes}, row, block, out);
  turn_query<Score>(out, Simd::W, Simd::W);
}

template <class Score>
inline void store_query_block(const PairwiseBackwardJob& job, int64_t row,
                              const FeatureBlock& block, const float* from) {
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

// Queries [row, row + rows) with candidates [column, column + columns).
struct PairTile {
  int64_t row, rows, column, columns;
};

// Loads the factors of a pair's gradients from `feature` on: the sum over the crops that hold these
// features.
inline void load_coefficients(const ScoreGradient& grad, int64_t feature, float scale,
                              const PairTile& tile,
                              float (&out)[kTileQueries][kTileCandidates]) {
  std::memset(out, 0, sizeof out);
  for (int64_t crop = 0; crop < grad.num_crops; ++crop) {
    if (grad.widths[crop] <= feature) continue;
    const int64_t columns = tile.columns, step = grad.column_stride;
    for (int64_t i = 0; i < tile.rows; ++i) {
      const float* from = grad.data + crop * grad.crop_stride + (tile.row + i) * grad.row_stride +
                          tile.column * step;
      if (step == 1) {
        for (int64_t j = 0; j < columns; ++j) out[i][j] += scale * from[j];
      } else {
        for (int64_t j = 0; j < columns; ++j) out[i][j] += scale * from[j * step];
      }
    }
  }
}

// Requested gradients, at least one.
struct Need {
  bool queries, rows;
  int index() const { return queries + queries * rows; }  // rows, queries, both
};

// Operands of a group of candidates and `rows` queries in one feature block.
struct Group {
  const float* queries;
  float* sums;  // the queries' gradients
  int64_t rows;
  const float (*coefficients)[kTileCandidates];
  int64_t first;  // column of the group's coefficients
  const float* candidates;
  float* totals;  // the candidates' gradients
};

// True if all phases of a group are near.
template <class Score>
inline bool group_is_near(const Group& group) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes;
  V largest = Simd::zero(), spread = Simd::zero();
  for (int64_t i = 0; i < group.rows; ++i)
    largest = Simd::max(Simd::abs(Simd::load(group.queries + (i * P + P - 1) * W)), largest);
  for (int j = 0; j < Score::group; ++j) {
    const V b = Simd::load(group.candidates + (j * R + R - 1) * W);
    spread = Simd::max(Simd::abs(Simd::sub(b, Simd::set1(1.0f))), spread);
  }
  return all_near(phase_square(largest, spread));
}

// Adds the gradients of a group of candidates with `rows` queries.
template <class Score, bool Q, bool C, bool Near>
void backward_group(const Group& group) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes, G = Score::group;
  const float *const queries = group.queries, *const candidates = group.candidates;
  float *const sums = group.sums, *const totals = group.totals;
  const float(*const coefficients)[kTileCandidates] = group.coefficients;
  const int64_t rows = group.rows, first = group.first;
  V c[G][R], dc[G][R];
  Extremes unused;
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
      backward_term<Score, Near>(Simd::set1(coefficients[i][first + j]), q, c[j], dq, dc[j],
                                 &unused);
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
  for (int64_t i = row; i < std::min(row + kTileQueries, end); ++i)
    __builtin_prefetch(grad.data + i * grad.row_stride + column * grad.column_stride, 0, 2);
}

// The features of a task: `count` blocks.
struct Slice {
  const FeatureBlock* blocks;
  int64_t count;
};

inline Slice slice_of(const PairwiseBackwardJob& job, int64_t index) {
  const int64_t first = index * job.num_blocks / job.num_slices;
  return {job.blocks + first, (index + 1) * job.num_blocks / job.num_slices - first};
}

// Picks the template by facts of run time: requested gradients of queries and of candidates (Q, C),
// and numbers that are all usual, with phases that are all near.
template <class Score>
inline void backward_group_of(const Need& need, bool usual, const Group& group) {
  using Backward = void (*)(const Group&);
  constexpr Backward nears[] = {backward_group<Score, false, true, true>,
                                backward_group<Score, true, false, true>,
                                backward_group<Score, true, true, true>};
  Backward backward = nears[need.index()];
  if constexpr (Score::has_near) {
    constexpr Backward anys[] = {backward_group<Score, false, true, false>,
                                 backward_group<Score, true, false, false>,
                                 backward_group<Score, true, true, false>};
    if constexpr (Score::has_phase) usual = usual && group_is_near<Score>(group);
    if (!usual) backward = anys[need.index()];
  }
  backward(group);
}

// Computes gradients of up to kTileCandidates candidates with all queries.
template <class Score>
void backward_candidates(const PairwiseBackwardJob& job, const Need& need, const Slice& slice,
                         int64_t first, int64_t count, BackwardWorker& worker) {
  constexpr int W = Simd::W, P = Score::query_planes, R = Score::row_planes;
  constexpr int64_t size = kTileCandidates * R * W;  // floats of one feature block
  alignas(64) float candidates[kBlocks<Score> * size], totals[kBlocks<Score> * size];
  alignas(64) float coefficients[kTileQueries][kTileCandidates];
  std::memset(candidates, 0, sizeof candidates);
  std::memset(totals, 0, sizeof totals);
  bool usual = true;
  for (int64_t n = 0; n < slice.count; ++n)
    for (int64_t j = 0; j < count; ++j) {
      const int64_t at = n * size + j * R * W;
      load_block<R>(job.rows, first + j, slice.blocks[n], candidates + at);
      if (Score::has_near) usual = usual && are_usual<Score>(candidates + at, 2);
      if (need.rows && job.adds_to_rows)
        load_block<R>(job.grad_rows, first + j, slice.blocks[n], totals + at);
    }
  for (int64_t row = 0; row < job.query.count; row += kTileQueries) {
    const int64_t rows = std::min(kTileQueries, job.query.count - row);
    for (int64_t n = 0; n < slice.count; ++n) {
      if (n == 0 || slice.blocks[n].begins_crop)
        load_coefficients(job.grad, slice.blocks[n].feature, Score::grad_scale,
                          {row, rows, first, count}, coefficients);
      if (n == 0) prefetch_coefficients(job.grad, row + kTileQueries, job.query.count, first);
      const float* queries = worker.queries + (n * job.query.count + row) * P * W;
      float* sums = worker.sums + (n * job.query.count + row) * P * W;
      for (int64_t j = 0; j < count; j += Score::group) {
        const int64_t at = n * size + j * R * W;
        backward_group_of<Score>(need, usual && worker.usual[row / kTileQueries],
                                 {queries, sums, rows, coefficients, j, candidates + at,
                                  totals + at});
      }
    }
  }
  for (int64_t n = 0; need.rows && n < slice.count; ++n)
    for (int64_t j = 0; j < count; ++j)
      store_block<R>(job.grad_rows, first + j, slice.blocks[n], totals + n * size + j * R * W);
}

template <class Score>
inline void store_queries(const PairwiseBackwardJob& job, const Slice& slice, const float* from) {
  constexpr int64_t size = Score::query_planes * Simd::W;
  for (int64_t row = 0; row < job.query.count; ++row)
    for (int64_t n = 0; n < slice.count; ++n)
      store_query_block<Score>(job, row, slice.blocks[n],
                               from + (n * job.query.count + row) * size);
}

template <class Score>
inline float* partial_totals(const PairwiseBackwardJob& job, int64_t index, int64_t range) {
  constexpr int64_t floats = kBlocks<Score> * Score::query_planes * Simd::W;
  return job.partial_totals + (index * job.num_ranges + range) * job.query.count * floats;
}

template <class Score>
void backward_slice(const PairwiseBackwardJob& job, int64_t index, int64_t range,
                   BackwardWorker& worker) {
  constexpr int64_t size = Score::query_planes * Simd::W;
  const Need need{job.grad_query.data != nullptr,
                  job.grad_rows.view.data || job.grad_rows.factor.data};
  const FloatMode mode(FloatMode::kFlush);
  const Slice slice = slice_of(job, index);
  const int64_t numbers = slice.count * job.query.count * size;
  const bool partial = need.queries && job.num_ranges > 1;
  float* totals = partial ? partial_totals<Score>(job, index, range) : worker.totals;
  for (int64_t row = 0; row < job.query.count; ++row) {
    bool& usual = worker.usual[row / kTileQueries];
    if (row % kTileQueries == 0) usual = true;
    for (int64_t n = 0; n < slice.count; ++n) {
      float* query = worker.queries + (n * job.query.count + row) * size;
      load_query_block<Score>(job, row, slice.blocks[n], query);
      if (Score::has_near) usual = usual && are_usual<Score>(query, Score::is_rscf ? 4 : 2);
    }
  }
  if (need.queries) {
    std::memset(worker.sums, 0, sizeof(float) * numbers);
    std::memset(totals, 0, sizeof(float) * numbers);
  }
  const int64_t begin = range * job.range_size;
  const int64_t end = std::min(begin + job.range_size, job.rows.view.count);
  for (int64_t first = begin; first < end; first += kTileCandidates) {
    const int64_t next = std::min(first + kTileCandidates, end);
    prefetch_coefficients(job.grad, 0, job.query.count, first);
    backward_candidates<Score>(job, need, slice, first, next - first, worker);
    if (!need.queries || ((next - begin) % kTileSum != 0 && next != end)) continue;
    add_floats(totals, worker.sums, numbers);
    std::memset(worker.sums, 0, sizeof(float) * numbers);
  }
  if (need.queries && !partial) store_queries<Score>(job, slice, totals);
}

template <class Score>
void add_ranges(const PairwiseBackwardJob& job, int64_t index) {
  const FloatMode mode(FloatMode::kFlush);
  const Slice slice = slice_of(job, index);
  float* first = partial_totals<Score>(job, index, 0);
  for (int64_t range = 1; range < job.num_ranges; ++range)
    add_floats(first, partial_totals<Score>(job, index, range),
               slice.count * job.query.count * Score::query_planes * Simd::W);
  store_queries<Score>(job, slice, first);
}

}  // namespace
}  // namespace kgfast
