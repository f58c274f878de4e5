// Scores of every query with every candidate of a pool, and their gradients.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
#pragma once
#include <functional>

#include "host/job.h"
#include "host/rows.h"

namespace kgfast {

struct PairwiseJob {
  SweepJob sweep;         // operands, bias and the packed queries of one pass
  const int64_t* widths;  // [C] crop widths, ascending, each once
  const int64_t* slots;   // [C] which matrix of `out` a crop fills
  int64_t num_widths;     // C
  int64_t all_queries;    // B, of all passes
  float* out;             // [*, B, K]
};

// Features [feature, feature + count) of the gradients, at most a vector; no crop ends inside.
struct FeatureBlock {
  int64_t feature, count;
  bool begins_crop;  // the crops that have it are not those of the block before it
};

// dL/dscore [C, B, K], by its strides in elements: it may well be an expanded number.
struct ScoreGradient {
  const float* data;
  int64_t crop_stride, row_stride, column_stride;
  const int64_t* widths;  // [C] crop widths, in any order
  int64_t num_crops;      // C
};

struct PullJob {
  ScoreId score;
  View query;
  Rows rows;  // the candidates
  View grad_query;  // written; no data where it is not wanted
  Rows grad_rows;   // likewise, of rows and of their factor
  ScoreGradient grad;
  int64_t num_queries, num_candidates;
  const FeatureBlock* blocks;
  int64_t num_blocks;
  int64_t num_spans;  // parts of the rows, of some blocks each
  int64_t stripe;    // candidates per stripe: stripes keep a part of the queries' gradient each
  int64_t num_stripes;
  float* parts;      // [spans][stripes][span][B], where there are several stripes
  bool add_to_rows;  // grad_rows (float32) holds a gradient already
};

struct PullWorker {
  float* queries;  // [blocks][B][planes][W]: a span of them
  float* sums;     // likewise: their gradient, of at most 64 candidates
  float* totals;   // likewise: of all candidates so far
};

// How a pull cuts the rows: feature blocks of `width`, some to a span, and the floats that a span
// has of a query.
struct PullShape {
  int width, blocks, floats;
};

struct PairwiseKernels {
  PullShape (*shape)(ScoreId);
  void (*sweep)(const PairwiseJob&, int64_t panel, int64_t first, int64_t last, Worker&);
  void (*pull)(const PullJob&, int64_t span, int64_t stripe, PullWorker&);
  // Sums the stripes' parts of one span of the queries' gradient.
  void (*reduce)(const PullJob&, int64_t span);
};

// Both ask `interrupted` now and then, on the calling thread only, and say whether it said so.
bool pairwise_scores(const Isa& isa, PairwiseJob& job, int threads,
                     const std::function<bool()>& interrupted);
bool pairwise_backward(const Isa& isa, PullJob& job, int threads,
                       const std::function<bool()>& interrupted);

}  // namespace kgfast
