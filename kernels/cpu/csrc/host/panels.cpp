#include "host/panels.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "host/byte_rows.h"
#include "host/int8.h"
#include "host/passes.h"

namespace kgfast {
namespace {

// Calls pack(worker, panel, scratch) for all panels of `lanes` candidates.
template <class Pack>
SweepStatus pack_all(const Execution& execution, const SweepJob& job, int64_t lanes,
                     int64_t scratch_bytes, Pack pack) {
  const int64_t panels = divide_up(job.num_candidates, lanes);
  std::vector<Worker> workers(threads_for(panels, execution.threads));
  Buffer<char> scratch(static_cast<int64_t>(workers.size()) * scratch_bytes);
  for (Worker& worker : workers) worker.bad_candidate = worker.bad_factor = INT64_MAX;
  SweepStatus status;
  status.interrupted =
      parallel(static_cast<int>(workers.size()), panels, execution.interrupted,
               [&](int i, int64_t panel) {
                 pack(workers[i], panel, scratch.data + i * scratch_bytes);
               });
  for (const Worker& worker : workers)
    status.bad_candidate = std::min(status.bad_candidate, worker.bad_candidate);
  return status;
}

}  // namespace

SweepStatus pack_table(const Execution& execution, const Operands& operands, const Packed& panels) {
  const Isa& isa = execution.isa;
  const int64_t features = panels.features;
  const Crop crop{features, 0.0f};
  SweepJob job = begin_sweep(isa, operands);
  job.crops = &crop;
  job.num_crops = 1;
  job.num_features = features;
  set_norm(job, crop_bound(job, 0, isa.sqrt_error));
  const int planes = job.facts.planes;
  if ((panels.int8 && !isa.int8) || (panels.bytes && !isa.bytes))
    throw std::invalid_argument("this machine lacks the tier of these panels");
  if (panels.int8)
    return pack_all(execution, job, kInt8Candidates, int8_scratch_bytes(features),
                    [&](Worker& worker, int64_t panel, char* scratch) {
                      char* const out = panels.int8 + panel * int8_panel_bytes(features);
                      isa.int8->pack_panel(job, panel, scratch, out, worker);
                    });
  const SweepStatus status = pack_all(
      execution, job, job.facts.lanes, 0, [&](Worker& worker, int64_t panel, char*) {
        worker.room = panels.panels + panel * features * planes * job.facts.lanes;
        panels.norms[panel] = isa.pack_panel(job, panel, worker);
      });
  if (!panels.bytes || !is_ok(status)) return status;
  const int64_t row_bytes = planes * byte_scratch(features) * int64_t{sizeof(float)};
  return pack_all(execution, job, kByteCandidates, divide_up(row_bytes, 64) * 64,
                  [&](Worker&, int64_t panel, char* scratch) {
                    char* const out = panels.bytes + panel * byte_panel_bytes(features, planes);
                    isa.bytes->pack_panel(job, panel, panels.scale,
                                          reinterpret_cast<float*>(scratch), out);
                  });
}

}  // namespace kgfast
