// Adam on some rows of a table (Kingma & Ba 2015, algorithm 1), in place and in one pass.
//
// Cost model, per number: a division, a square root, 28 bytes: the row and both moments are read
// and written once, the gradient is read once. Memory is the limit.
#pragma once
#include <cstdint>

namespace kgfast {

// Rows of `width` float32 numbers, one after the other.
struct RowAdamJob {
  float *table, *first_moment, *second_moment;  // [N][width]
  const int64_t* ids;                           // [count], distinct
  const float* gradients;                       // [count][width]
  int64_t count, width;
  float first_share, second_share;  // share of a gradient in the moments: 1 - beta
  float step_size;                  // rate over the first bias correction
  float root_scale;                 // 1 / square root of the second bias correction
  float eps, weight_decay;
};

void row_adam(const RowAdamJob& job, int threads);

}  // namespace kgfast
