#include "host/panels.h"

#include <algorithm>
#include <vector>

#include "host/passes.h"

namespace kgfast {

SweepStatus pack_panels(const Execution& execution, const Operands& operands, int64_t features,
                        float* panels, float* norms) {
  SweepJob job = begin_sweep(execution.isa, operands);
  const Crop crop{features, 0.0f};
  job.crops = &crop;
  job.num_crops = 1;
  job.num_features = job.features_per_block = features;
  set_norm(job, crop_bound(execution.isa, job, 0));
  const int64_t floats = features * job.facts.planes * job.facts.lanes;
  const int64_t count = divide_up(job.num_candidates, job.facts.lanes);
  SweepStatus status;
  std::vector<Worker> workers(threads_for(count, execution.threads));
  for (Worker& worker : workers) worker.bad_candidate = worker.bad_factor = INT64_MAX;
  const auto pack = [&](int i, int64_t panel) {
    workers[i].room = panels + panel * floats;
    norms[panel] = execution.isa.pack_panel(job, panel, workers[i]);
  };
  status.interrupted =
      parallel(static_cast<int>(workers.size()), count, execution.interrupted, pack);
  for (const Worker& worker : workers)
    status.bad_candidate = std::min(status.bad_candidate, worker.bad_candidate);
  return status;
}

}  // namespace kgfast
