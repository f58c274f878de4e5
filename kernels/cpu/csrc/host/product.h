// Sums of rows by the coefficients of pairs: both gradients of `dot`.
#pragma once
#include "host/backward.h"

namespace kgfast {

// out[i] = sum_j g(i, j) other[j]: `grad.row_stride` steps i and `grad.column_stride` steps j.
struct ProductJob {
  ScoreGradient grad;
  View out, other;
  bool adds;                   // out (float32) holds a part already
  const FeatureBlock* strips;  // features that a tile holds, none across the end of a crop
  int64_t num_strips;
  int64_t block, num_blocks;    // rows of `out` per task
  int64_t stripe, num_stripes;  // rows of `other` per task
  float* parts;                 // [stripes][blocks][block_floats], where there are several stripes
};

struct ProductShape {
  int strip;        // features of a strip, at most
  int64_t rows;     // of a block, at most
  int64_t depth;    // rows of the other side that are summed in registers
  int64_t scratch;  // floats that a task needs beside the sums of its block
};

struct ProductKernels {
  ProductShape (*shape)();
  int64_t (*block_floats)(const ProductJob&);  // of the sums of a block
  // One block of rows, of one stripe. `scratch`: shape().scratch floats, then those of a block.
  void (*part)(const ProductJob&, int64_t block, int64_t stripe, float* scratch);
  // Adds the stripes' parts of a block, in their order.
  void (*add_stripes)(const ProductJob&, int64_t block);
};

// The backward of `dot`; true if it was interrupted.
bool product_backward(const Execution& execution, const PairwiseBackwardJob& job);

}  // namespace kgfast
