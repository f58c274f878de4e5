#include "host/panels.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "host/byte_rows.h"
#include "host/int8.h"
#include "host/passes.h"

namespace kgfast {
namespace {

// Returns a job of one crop.
SweepJob job_of(const Execution& execution, const Operands& operands, const Crop& crop) {
  SweepJob job = begin_sweep(execution.isa, operands);
  job.crops = &crop;
  job.num_crops = 1;
  job.num_features = crop.end;
  return job;
}

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

SweepStatus pack_panels(const Execution& execution, const Operands& operands, int64_t features,
                        float* panels, float* norms) {
  const Crop crop{features, 0.0f};
  SweepJob job = job_of(execution, operands, crop);
  set_norm(job, crop_bound(execution.isa, job, 0));
  const int64_t floats = features * job.facts.planes * job.facts.lanes;
  return pack_all(execution, job, job.facts.lanes, 0, [&](Worker& worker, int64_t panel, char*) {
    worker.room = panels + panel * floats;
    norms[panel] = execution.isa.pack_panel(job, panel, worker);
  });
}

int64_t int8_table_bytes(int64_t rows, int64_t features) {
  return divide_up(rows, kInt8Candidates) * int8_panel_bytes(features);
}

SweepStatus pack_int8_table(const Execution& execution, const Operands& operands, int64_t features,
                            char* out) {
  const Crop crop{features, 0.0f};
  const SweepJob job = job_of(execution, operands, crop);
  const Int8Tier* tier = execution.may_use(Tier::int8) ? int8_tier_of(execution.isa) : nullptr;
  if (!tier || job.facts.terms != Terms::products || features > kInt8MostFeatures)
    throw std::invalid_argument("the int8 tier does not serve these rows");
  return pack_all(execution, job, kInt8Candidates, int8_scratch_bytes(features),
                  [&](Worker& worker, int64_t panel, char* scratch) {
                    tier->pack_panel(job, panel, scratch, out + panel * int8_panel_bytes(features),
                                     worker);
                  });
}

int64_t byte_table_bytes(int64_t rows, int64_t features, int planes) {
  return divide_up(rows, kByteCandidates) * byte_panel_bytes(features, planes);
}

SweepStatus pack_byte_table(const Execution& execution, const Operands& operands, int64_t features,
                            float scale, char* out) {
  const Crop crop{features, 0.0f};
  const SweepJob job = job_of(execution, operands, crop);
  const ByteTier* tier = execution.may_use(Tier::bytes) ? execution.isa.bytes : nullptr;
  if (!tier || features > kByteMostFeatures)
    throw std::invalid_argument("no bytes of these rows are made here");
  const int planes = job.facts.planes;
  const int64_t row_bytes = planes * byte_scratch(features) * int64_t{sizeof(float)};
  const int64_t scratch_bytes = divide_up(row_bytes, 64) * 64;
  return pack_all(execution, job, kByteCandidates, scratch_bytes,
                  [&](Worker&, int64_t panel, char* scratch) {
                    tier->pack_panel(job, panel, scale, reinterpret_cast<float*>(scratch),
                                     out + panel * byte_panel_bytes(features, planes));
                  });
}

}  // namespace kgfast
