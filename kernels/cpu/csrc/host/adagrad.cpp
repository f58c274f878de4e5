#include "host/adagrad.h"

#include "host/parallel.h"

namespace kgfast {

void adagrad(const Execution& execution, const AdagradJob& job) {
  constexpr int64_t numbers_per_task = 1 << 15;
  const AdagradKernels& kernels = *execution.isa.adagrad;
  parallel_parts(execution.threads, job.count, numbers_per_task, never,
                 [&](int, int64_t first, int64_t last) { kernels.part(job, first, last); });
}

}  // namespace kgfast
