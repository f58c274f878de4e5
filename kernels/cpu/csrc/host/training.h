// Elementwise work of training: passes of streamed losses over one scratch of scores, and updates
// of rows of a table, in place and in one pass.
//
// Cost model of updates, per number: a division, a square root, and 20 bytes for Adagrad, 28 for
// Adam. Memory is the limit.
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
  exp_sums = 2,        // a = the highest x so far, b = sum exp(x - a) so far, c += sum x
  softmax_slopes = 3,  // x = scale exp(x - shift) - share
  // With w = exp(constant (x - a)): a = the highest x, b = sum w, c = sum w softplus(x).
  adversarial_sums = 4,
  adversarial_slopes = 5,  // x = scale exp(constant (x - shift)) sigmoid(x)
  // a += sum softplus(x), b += sum x, x = scale (sigmoid(x) - constant), by one exponential.
  softplus_sums_sigmoid_slopes = 6,
  exp_sums_softmax_slopes = 7,       // exp_sums of a whole row, x = scale / b exp(x - a) - share
};

void loss_pass(const Execution& execution, LossPass pass, const LossTile& tile);

// Adagrad (Duchi et al. 2011) on rows of `width` float32 numbers, one after the other.
struct AdagradJob {
  float *table, *sum;      // [N][width]
  const int64_t* ids;      // distinct ids of the gradient's rows; null: 0, 1, ...
  const float* gradient;   // [count / width][width]
  int64_t count, width;
  float rate, eps, weight_decay;
};

struct TrainingKernels {
  void (*loss_row)(LossPass, const LossTile&, int64_t row);
  void (*adagrad)(const AdagradJob&, int64_t first, int64_t last);  // numbers of the gradient
};

void adagrad(const Execution& execution, const AdagradJob& job);

// Adam (Kingma & Ba 2015, algorithm 1) on some rows of `width` float32 numbers.
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
