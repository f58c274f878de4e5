#include "host/int8_table.h"

#include <stdexcept>

#include "host/int8_pass.h"

namespace kgfast {

int64_t int8_table_bytes(int64_t rows, int64_t features) {
  return divide_up(rows, kInt8Candidates) * int8_panel_bytes(features);
}

SweepStatus pack_int8_table(const Execution& execution, const Operands& operands, int64_t features,
                            char* out) {
  SweepJob job = begin_sweep(execution.isa, operands);
  const Crop crop{features, 0.0f};
  job.crops = &crop;
  job.num_crops = 1;
  job.num_features = features;
  const Int8Pass pass(execution, job);
  if (!pass.is_available()) throw std::invalid_argument("the int8 tier does not serve these rows");
  SweepStatus status;
  const int64_t panels = divide_up(job.num_candidates, kInt8Candidates);
  const int threads = threads_for(panels, execution.threads);
  Buffer<char> scratch(threads * int8_scratch_bytes(features));
  std::vector<Worker> workers(threads);
  for (Worker& worker : workers) worker.bad_candidate = worker.bad_factor = INT64_MAX;
  status.interrupted =
      parallel(threads, panels, execution.interrupted, [&](int worker, int64_t panel) {
        pass.tier().pack_panel(job, panel, scratch.data + worker * int8_scratch_bytes(features),
                               out + panel * int8_panel_bytes(features), workers[worker]);
      });
  for (const Worker& worker : workers)
    status.bad_candidate = std::min(status.bad_candidate, worker.bad_candidate);
  return status;
}

}  // namespace kgfast
