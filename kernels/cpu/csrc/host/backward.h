// The gradients of scores: of queries, of rows and of their factor.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
#pragma once
#include <vector>

#include "host/execution.h"

namespace kgfast {

// dL/dscore [C, B, K], by its strides in elements: it may well be an expanded number.
struct ScoreGradient {
  const float* data;
  int64_t crop_stride, row_stride, column_stride;
  const int64_t* widths;  // [C] crop widths, in any order
  int64_t num_crops;      // C
};

struct BackwardJob : Operands {
  ScoreGradient grad;
  View grad_query;  // [B], written; no data where it is not asked for
  Rows grad_rows;   // likewise, of rows and of their factor
};

// Features [feature, feature + count) of the gradients, at most a vector; no crop ends inside.
struct FeatureBlock {
  int64_t feature, count;
  bool begins_crop;  // the crops that have it are not those of the block before it
};

// Blocks of at most `width` features.
std::vector<FeatureBlock> feature_blocks(const ScoreGradient& grad, int64_t width);

// The gradients of scores with all rows.
struct PairwiseBackwardJob : BackwardJob {
  bool adds_to_rows;  // grad_rows (float32) holds a gradient already
  const FeatureBlock* blocks;
  int64_t num_blocks;
  int64_t num_spans;  // parts of the rows, of some blocks each
  int64_t stripe;     // candidates per stripe: stripes keep a part of the queries' gradient each
  int64_t num_stripes;
  float* parts;       // [spans][stripes][span][B], where there are several stripes
};

struct BackwardWorker {
  float* queries;  // [blocks][B][planes][W]: a span of them
  float* sums;     // likewise: their gradient, of at most 64 candidates
  float* totals;   // likewise: of all candidates so far
};

// Division of the rows: feature blocks of `width`, some to a span, and a span's floats of a query.
struct SpanShape {
  int width, blocks, floats;
};

// The pairs of an index by the row that they name.
struct RowGroups {
  const int64_t* ids;    // [U] distinct rows of the table
  const int64_t* order;  // [B K] positions in the index, those of ids[0] first
  const int64_t* first;  // [U + 1] where the positions of an id begin
  int64_t count;         // U
  bool whole_table;      // gradients of rows are [N], and each stands at its id; else [U]
};

// The gradients of scores with rows that queries name themselves.
struct IndexedBackwardJob : BackwardJob {
  const int64_t* index;  // [B, K]
  int64_t per_query;     // K
  int64_t num_features;  // features of the widest crop
  const int64_t* widths;  // [C] crop widths, ascending, each once
  RowGroups groups;
  const float* turned;  // [B][planes][padded], the queries as rows are scored with, or nullptr
};

struct BackwardKernels {
  SpanShape (*span_shape)(ScoreId);
  void (*span)(const PairwiseBackwardJob&, int64_t span, int64_t stripe, BackwardWorker&);
  // Sums the stripes' parts of one span of the queries' gradient.
  void (*add_stripes)(const PairwiseBackwardJob&, int64_t span);
  int64_t (*scratch)(ScoreId, int64_t num_features);  // floats that what follows needs
  void (*turn)(const IndexedBackwardJob&, int64_t row, float* out);
  void (*query)(const IndexedBackwardJob&, int64_t row, float* scratch);
  void (*row)(const IndexedBackwardJob&, int64_t position, float* scratch);
};

// Both are true if they were interrupted.
bool pairwise_backward(const Execution& execution, PairwiseBackwardJob& job);
bool indexed_backward(const Execution& execution, IndexedBackwardJob& job);

}  // namespace kgfast
