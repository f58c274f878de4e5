#include "host/byte_table.h"

#include <numeric>
#include <stdexcept>

#include "host/byte_pass.h"

namespace kgfast {

int64_t byte_table_bytes(int64_t rows, int64_t features, int planes) {
  return divide_up(rows, kByteCandidates) * byte_panel_bytes(features, planes);
}

SweepStatus pack_byte_table(const Execution& execution, const Operands& operands, int64_t features,
                            float scale, char* out) {
  const ByteTier* tier = execution.may_use(Tier::bytes) ? execution.isa.bytes : nullptr;
  if (!tier || features > kByteMostFeatures)
    throw std::invalid_argument("no bytes of these rows are made here");
  SweepJob job = begin_sweep(execution.isa, operands);
  job.num_features = features;
  const int planes = job.facts.planes;
  const int64_t panels = divide_up(job.num_candidates, kByteCandidates);
  const int64_t row = planes * byte_scratch(features);
  const int threads = threads_for(panels, execution.threads);
  Buffer<float> scratch(threads * row);
  SweepStatus status;
  status.interrupted =
      parallel(threads, panels, execution.interrupted, [&](int worker, int64_t panel) {
        tier->pack_panel(job, panel, scale, scratch.data + worker * row,
                         out + panel * byte_panel_bytes(features, planes));
      });
  return status;
}

void byte_errors(const Execution& execution, const Operands& operands, float* values,
                 float* bounds) {
  SweepJob job = begin_sweep(execution.isa, operands);
  job.num_features = operands.packed.features;
  const int64_t queries = operands.query.count, all = job.num_candidates;
  std::vector<int64_t> ids(queries);
  std::iota(ids.begin(), ids.end(), 0);
  job.query_ids = ids.data();
  job.num_queries = queries;
  BytePass pass(execution, job, 1);
  if (queries > kByteQueries || !pass.serves(1))
    throw std::invalid_argument("no bytes of these rows serve these queries");
  const std::vector<float> base(queries, 0.0f);
  pass.pack(job, base.data());
  std::vector<float> panel_values(queries * kByteCandidates), panel_bounds(panel_values);
  for (int64_t first = 0; first < all; first += kByteCandidates) {
    pass.tier().panel_values(pass.job(), first / kByteCandidates, panel_values.data(),
                             panel_bounds.data());
    for (int64_t query = 0; query < queries; ++query)
      for (int64_t n = 0; n < std::min(kByteCandidates, all - first); ++n) {
        values[query * all + first + n] = panel_values[query * kByteCandidates + n];
        bounds[query * all + first + n] = panel_bounds[query * kByteCandidates + n];
      }
  }
}

}  // namespace kgfast
