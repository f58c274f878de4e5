#include "host/losses.h"

#include "host/parallel.h"

namespace kgfast {

void loss_pass(const Execution& execution, LossPass pass, const LossTile& tile) {
  constexpr int64_t rows_per_task = 8;
  const std::function<bool()> never = [] { return false; };  // milliseconds
  const LossKernels& kernels = *execution.isa.losses;
  parallel(execution.threads, divide_up(tile.rows, rows_per_task), never, [&](int, int64_t task) {
    const int64_t end = std::min((task + 1) * rows_per_task, tile.rows);
    for (int64_t row = task * rows_per_task; row < end; ++row) kernels.row(pass, tile, row);
  });
}

}  // namespace kgfast
