// Adagrad on a whole parameter (Duchi et al. 2011), in place and in one pass.
//
// Cost model, per number: a division, a square root, 20 bytes: the parameter and its sum of squares
// are read and written once, the gradient is read once. Memory is the limit.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Float32 numbers, one after the other.
struct AdagradJob {
  float *parameter, *sum;  // [count]
  const float* gradient;   // [count]
  int64_t count;
  float rate, eps, weight_decay;
};

struct AdagradKernels {
  void (*part)(const AdagradJob&, int64_t first, int64_t last);
};

void adagrad(const Execution& execution, const AdagradJob& job);

}  // namespace kgfast
