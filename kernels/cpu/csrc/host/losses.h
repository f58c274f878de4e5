// The elementwise passes of streamed losses over one scratch of scores.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Scores [rows, columns], one row after the other, and numbers of each row.
struct LossTile {
  float* scores;
  int64_t rows, columns;
  double *a, *b, *c;         // [rows] sums, added to
  const float *shift, *scale;  // [rows]
  float constant;
  const float* share;        // [rows]
};

// Passes over a row of scores, with the numbers of kernels/cpu/passes.py.
enum class LossPass : int {
  softplus_sums = 0,   // a += sum softplus(x), b += sum x
  sigmoid_slopes = 1,  // x = scale (sigmoid(x) - constant)
  exp_sums = 2,        // a = the highest x so far, b = sum exp(x - a) so far, c += sum x
  softmax_slopes = 3,  // x = scale exp(x - shift) - share
  // With w = exp(constant (x - a)): a = the highest x, b = sum w, c = sum w softplus(x).
  adversarial_sums = 4,
  adversarial_slopes = 5,  // x = scale exp(constant (x - shift)) sigmoid(x)
  softplus_sums_sigmoid_slopes = 6,  // softplus_sums and sigmoid_slopes, by one exponential
  exp_sums_softmax_slopes = 7,       // exp_sums of a whole row, x = scale / b exp(x - a) - share
};

struct LossKernels {
  void (*row)(LossPass, const LossTile&, int64_t row);
};

void loss_pass(const Execution& execution, LossPass pass, const LossTile& tile);

}  // namespace kgfast
