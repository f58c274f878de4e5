// The gradients of scores with respect to queries, to rows and to the rows' factor.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
#pragma once
#include <vector>

#include "host/execution.h"

namespace kgfast {

// dL/dscore [C, B, K]. Strides are in elements, and 0 where torch expanded one number.
struct ScoreGradient {
  const float* data;
  int64_t crop_stride, row_stride, column_stride;
  const int64_t* widths;  // [C] crop widths, in any order
  int64_t num_crops;      // C
};

struct BackwardJob : Operands {
  ScoreGradient grad;
  View grad_query;  // [B], written; no data: not computed
  Rows grad_rows;   // gradients of rows and of their factor, written; no data: not computed
};

// Features [feature, feature + count) of the gradients; no crop ends inside.
struct FeatureBlock {
  int64_t feature, count;
  bool begins_crop;  // true: a crop ends before this block, or the block is the first
};

// Cuts the features of all crops into blocks of at most `width`.
std::vector<FeatureBlock> feature_blocks(const ScoreGradient& grad, int64_t width);

// The gradients of the scores of all queries with all rows.
struct PairwiseBackwardJob : BackwardJob {
  bool adds_to_rows;  // grad_rows (float32) holds a gradient already
  const FeatureBlock* blocks;
  int64_t num_blocks;
  int64_t num_slices;              // slices of the features: some blocks each
  int64_t range_size, num_ranges;  // candidates of a range
  // [slices][ranges][slice][B]: gradients of queries by each range, where there are several.
  float* partial_totals;
};

struct BackwardWorker {
  float* queries;  // [blocks][B][planes][W]: the queries, in one slice
  float* sums;     // gradient of these queries from at most 64 candidates
  float* totals;   // gradient of these queries from all candidates so far
  bool* usual;     // [tiles of queries]: true: the numbers in this slice are usual (are_usual)
};

// A slice of the features: `blocks` blocks of `width`, with `floats` of each query.
struct SliceShape {
  int width, blocks, floats;
};

// The pairs of an index by the row that they name.
struct RowGroups {
  const int64_t* ids;    // [U] distinct rows of the table
  const int64_t* order;  // [B K] positions in the index, those of ids[0] first
  const int64_t* first;  // [U + 1]: places in `order` where the positions of an id begin
  int64_t count;         // U
  bool whole_table;      // true: gradients of rows are [N], by id; false: [U]
};

// The gradients of the scores of rows that each query names by an index.
struct IndexedBackwardJob : BackwardJob {
  const int64_t* index;  // [B, K]
  int64_t per_query;     // K
  int64_t num_features;  // features of the widest crop
  const int64_t* widths;  // [C] crop widths, ascending, each once
  RowGroups groups;
  const float* turned;  // [B][planes][padded]: queries turned for scoring rows, or nullptr
};

struct BackwardKernels {
  SliceShape (*slice_shape)(ScoreId);
  void (*backward_slice)(const PairwiseBackwardJob&, int64_t slice, int64_t range, BackwardWorker&);
  // Adds the gradients of queries in one slice by all ranges, in the order of the ranges.
  void (*add_ranges)(const PairwiseBackwardJob&, int64_t slice);
  int64_t (*scratch)(ScoreId, int64_t num_features);  // floats of `scratch` below
  void (*turn)(const IndexedBackwardJob&, int64_t row, float* out);
  void (*query)(const IndexedBackwardJob&, int64_t row, float* scratch);
  void (*row)(const IndexedBackwardJob&, int64_t position, float* scratch);
};

// Computes the gradients; returns true if interrupted.
bool pairwise_backward(const Execution& execution, PairwiseBackwardJob& job);
bool indexed_backward(const Execution& execution, IndexedBackwardJob& job);

}  // namespace kgfast
