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
  const int64_t* widths;  // [C] crop widths, ascending, each once
  int64_t num_crops;      // C
};

// The pairs of an index by the row that they name.
struct RowGroups {
  const int64_t* ids;    // [U] distinct rows of the table
  const int64_t* order;  // [B K] positions in the index, those of ids[0] first
  const int64_t* first;  // [U + 1]: places in `order` where the positions of an id begin
  int64_t count;         // U
  bool whole_table;      // true: gradients of rows are [N], by id; false: [U]
};

struct BackwardJob : Operands {
  ScoreGradient grad;
  View grad_query;        // [B], written; no data: not computed
  Rows grad_rows;         // gradients of rows and of their factor, written; no data: not computed
  int64_t num_features;   // features of the widest crop
  bool adds_to_rows;      // without an index: grad_rows (float32) holds a gradient already
  const int64_t* index;   // [B, K] rows that each query names
  int64_t per_query;      // K; -1: all rows, without an index
  RowGroups groups;       // of an index
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

// The gradients of the scores of rows that each query names by an index.
struct IndexedBackwardJob : BackwardJob {
  const float* turned;  // [B][planes][padded]: queries turned for scoring rows, or nullptr
};

struct BackwardKernels {
  SliceShape (*slice_shape)(ScoreId);
  void (*backward_slice)(const PairwiseBackwardJob&, int64_t slice, int64_t range, BackwardWorker&);
  // Adds the gradients of queries in one slice by all ranges, in the order of the ranges.
  void (*add_ranges)(const PairwiseBackwardJob&, int64_t slice);
  // Scratch: a padded query's values, its sums, and their second level.
  void (*turn)(const IndexedBackwardJob&, int64_t row, float* out);
  void (*query)(const IndexedBackwardJob&, int64_t row, float* scratch);
  void (*row)(const IndexedBackwardJob&, int64_t position, float* scratch);
};

// Ranges of the terms of long sums.
struct TermRanges {
  int64_t size, count;
};

// Cuts `terms` into at most `wanted` ranges, of whole units and of at least `least` terms, whose
// sums take at most 16 MiB. Facts of the shape alone decide, so threads change no sum.
TermRanges term_ranges(int64_t terms, int64_t wanted, int64_t range_bytes, int64_t least,
                       int64_t unit);

// Computes the gradients; returns true if interrupted.
bool backward(const Execution& execution, const BackwardJob& job);

}  // namespace kgfast
