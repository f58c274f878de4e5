// Sums of rows, weighted by coefficients of pairs: the scores of `dot` and both their gradients.
#pragma once
#include "host/backward.h"
#include "host/scores.h"

namespace kgfast {

// out[i] = sum_j g(i, j) other[j]: `grad.row_stride` steps i and `grad.column_stride` steps j.
struct ProductJob {
  ScoreGradient grad;
  View out, other;
  bool adds;                   // out (float32) holds a part already
  const FeatureBlock* strips;  // features that a tile holds, none across the end of a crop
  int64_t num_strips;
  int64_t block, num_blocks;       // rows of `out` per task
  int64_t range_size, num_ranges;  // rows of `other` (terms of a sum) per task
  float* partial_sums;  // [ranges][blocks][block_floats], where there are several ranges
  const float* packed;  // all strips of `other` as blocks read them, or nullptr
};

struct ProductShape {
  int strip;        // features of a strip, at most
  int vector;       // features of a vector: a strip is whole vectors
  int64_t rows;     // rows of a block, at most
  int64_t depth;    // rows of the other side that are summed in registers
  int64_t scratch;  // floats that a task needs beside the sums of its block
  int64_t packed;   // floats of a strip of `depth` rows of the other side
};

// Scores of queries with blocks of rows. Rows are the coefficients, queries stand in lanes: a strip
// holds all features of a few queries.
struct ProductScoresJob : ScoresJob {
  const FeatureBlock* strips;  // strips of queries
  const float* packed;         // [strips][features][strip]
};

struct ProductScoresShape {
  int64_t rows;     // rows of a block
  int64_t copied;   // floats of copied rows; 0: rows are read in place
  int64_t scratch;  // floats that a task needs
};

struct ProductKernels {
  ProductShape (*shape)();
  int64_t (*block_floats)(const ProductJob&);  // floats of a block's sums
  // Packs a strip of `depth` rows of the other side; `index` counts strips first.
  void (*pack_others)(const ProductJob&, int64_t index, float* out);
  // Sums a range of terms for a block of rows. `scratch`: shape().scratch floats, a block's sums.
  void (*sum_range)(const ProductJob&, int64_t block, int64_t range, float* scratch);
  // Adds the sums of a block over all ranges, in the order of the ranges.
  void (*add_ranges)(const ProductJob&, int64_t block);
  ProductScoresShape (*scores_shape)(const ScoresJob&);
  void (*pack)(const ProductScoresJob&, int64_t strip, float* out);
  // Scores one block of rows with strips [first, last).
  void (*scores)(const ProductScoresJob&, int64_t block, int64_t first, int64_t last,
                 float* scratch);
};

// Computes scores of `dot`, or their gradients; returns true if interrupted.
bool product_scores(const Execution& execution, const ScoresJob& job);
bool product_backward(const Execution& execution, const BackwardJob& job);

}  // namespace kgfast
