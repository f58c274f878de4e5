#include "host/losses.h"

#include "host/parallel.h"

namespace kgfast {

void loss_pass(const Execution& execution, LossPass pass, const LossTile& tile) {
  constexpr int64_t rows_per_task = 8;
  const LossKernels& kernels = *execution.isa.losses;
  parallel_parts(execution.threads, tile.rows, rows_per_task, never,
                 [&](int, int64_t first, int64_t last) {
                   for (int64_t row = first; row < last; ++row) kernels.row(pass, tile, row);
                 });
}

}  // namespace kgfast
