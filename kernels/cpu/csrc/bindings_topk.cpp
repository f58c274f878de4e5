// Bindings of the best k candidates. Python has checked the arguments.
#include "bindings.h"
#include "topk.h"

namespace kgfast {
namespace {

py::tuple py_topk(const std::string& isa, int score, const py::tuple& query,
                  const py::tuple& table, const py::object& factor, int64_t num_queries,
                  int64_t num_candidates, int64_t num_features, int term_ulps, int64_t k,
                  uintptr_t exclude_indptr, uintptr_t exclude_indices, uintptr_t bias,
                  uintptr_t bias_exact, double bias_max, double bias_magnitude,
                  uintptr_t candidate_ids, bool nan_worst, int threads, bool wide_scores,
                  uintptr_t scores, uintptr_t ids) {
  TopkRequest request{};
  SweepJob& job = request.job;
  set_operands(job, score, query, table, factor);
  job.num_candidates = num_candidates;
  job.num_features = num_features;
  job.bias = pointer<const float>(bias);
  job.bias_exact = pointer<const double>(bias_exact);
  job.bias_max = static_cast<float>(bias_max);
  job.candidate_ids = pointer<const int64_t>(candidate_ids);
  request.num_queries = num_queries;
  request.k = k;
  request.exclude_indptr = pointer<const int64_t>(exclude_indptr);
  request.exclude_indices = pointer<const int64_t>(exclude_indices);
  request.bias_magnitude = bias_magnitude;
  request.term_ulps = term_ulps;
  request.threads = threads;
  request.nan_worst = nan_worst;
  request.wide_scores = wide_scores;
  request.scores = pointer<void>(scores);
  request.ids = pointer<int64_t>(ids);

  const Isa& kernels = isa_named(isa);
  SweepStatus status;
  {
    const py::gil_scoped_release release;
    status = topk(kernels, request, interrupted);
  }
  if (status.interrupted) throw py::error_already_set();
  return bad_rows(status);
}

}  // namespace

void bind_topk(py::module_& module) { module.def("topk", &py_topk); }

}  // namespace kgfast
