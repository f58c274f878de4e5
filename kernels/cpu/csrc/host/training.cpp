#include "host/training.h"

#include <cmath>

#include "host/parallel.h"

namespace kgfast {
namespace {

// Updates one row. The constants are copies, so that no write can change them.
void update_row(const RowAdamJob& job, int64_t position) {
  const float first_share = job.first_share, second_share = job.second_share;
  const float step_size = job.step_size, root_scale = job.root_scale;
  const float eps = job.eps, weight_decay = job.weight_decay;
  const int64_t row = job.ids ? job.ids[position] : position, width = job.width;
  const int64_t start = row * width;
  float* __restrict numbers = job.table + start;
  float* __restrict first = job.first_moment + start;
  float* __restrict second = job.second_moment + start;
  const float* __restrict gradient = job.gradients + position * width;
  for (int64_t i = 0; i < width; ++i) {
    const float x = numbers[i], g = gradient[i] + weight_decay * x;
    const float m = first[i] + first_share * (g - first[i]);
    const float v = second[i] + second_share * (g * g - second[i]);
    first[i] = m;
    second[i] = v;
    numbers[i] = x - step_size * m / (std::sqrt(v) * root_scale + eps);
  }
}

}  // namespace

void loss_pass(const Execution& execution, LossPass pass, const LossTile& tile) {
  constexpr int64_t rows_per_task = 8;
  const TrainingKernels& kernels = *execution.isa.training;
  parallel_ranges(execution.threads, tile.rows, rows_per_task, never,
                  [&](int, int64_t first, int64_t last) {
                    for (int64_t row = first; row < last; ++row) kernels.loss_row(pass, tile, row);
                  });
}

void adagrad(const Execution& execution, const AdagradJob& job) {
  constexpr int64_t numbers_per_task = 1 << 15;
  const TrainingKernels& kernels = *execution.isa.training;
  parallel_ranges(execution.threads, job.count, numbers_per_task, never,
                  [&](int, int64_t first, int64_t last) { kernels.adagrad(job, first, last); });
}

void row_adam(const RowAdamJob& job, int threads) {
  constexpr int64_t rows_per_task = 16;
  parallel_ranges(threads, job.count, rows_per_task, never, [&](int, int64_t first, int64_t last) {
    for (int64_t position = first; position < last; ++position) update_row(job, position);
  });
}

}  // namespace kgfast
