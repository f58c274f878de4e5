// Adagrad on rows of a table (Duchi et al. 2011), in place and in one pass.
//
// Cost model, per number: a division, a square root, 20 bytes: the table and its sum of squares are
// read and written once, the gradient is read once. Memory is the limit.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Rows of `width` float32 numbers, one after the other.
struct AdagradJob {
  float *table, *sum;      // [N][width]
  const int64_t* ids;      // distinct ids of the gradient's rows; null: 0, 1, ...
  const float* gradient;   // [count / width][width]
  int64_t count, width;
  float rate, eps, weight_decay;
};

struct AdagradKernels {
  void (*part)(const AdagradJob&, int64_t first, int64_t last);
};

void adagrad(const Execution& execution, const AdagradJob& job);

}  // namespace kgfast
