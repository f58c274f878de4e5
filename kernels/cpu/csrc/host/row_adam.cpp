#include "host/row_adam.h"

#include <cmath>

#include "host/parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Updates one row. The constants are copies, so that no write can change them.
void update_row(const RowAdamJob& job, int64_t position) {
  const float first_share = job.first_share, second_share = job.second_share;
  const float step_size = job.step_size, root_scale = job.root_scale;
  const float eps = job.eps, weight_decay = job.weight_decay;
  const int64_t start = job.ids[position] * job.width, width = job.width;
  float* __restrict row = job.table + start;
  float* __restrict first = job.first_moment + start;
  float* __restrict second = job.second_moment + start;
  const float* __restrict gradient = job.gradients + position * width;
  for (int64_t i = 0; i < width; ++i) {
    const float x = row[i], g = gradient[i] + weight_decay * x;
    const float m = first[i] + first_share * (g - first[i]);
    const float v = second[i] + second_share * (g * g - second[i]);
    first[i] = m;
    second[i] = v;
    row[i] = x - step_size * m / (std::sqrt(v) * root_scale + eps);
  }
}

}  // namespace

void row_adam(const RowAdamJob& job, int threads) {
  parallel_parts(threads, job.count, kRowsPerTask, never, [&](int, int64_t first, int64_t last) {
    for (int64_t position = first; position < last; ++position) update_row(job, position);
  });
}

}  // namespace kgfast
