// Bindings of the best k candidates. Python has checked the arguments.
#pragma once
#include "host/bias.h"
#include "bind/bindings.h"
#include "host/topk.h"

namespace kgfast {
namespace {

py::tuple py_topk(const std::string& isa, int score, const py::tuple& query,
                  const py::tuple& table, const py::object& factor, int64_t num_queries,
                  int64_t num_candidates, int64_t num_features, int term_ulps, int64_t k,
                  uintptr_t exclude_indptr, uintptr_t exclude_indices, const MaybeView& bias,
                  int64_t num_rows, uintptr_t candidate_ids, bool nan_worst, int threads, bool wide_scores,
                  uintptr_t scores, uintptr_t ids) {
  TopkRequest request{};
  SweepJob& job = request.job;
  set_operands(job, score, query, table, factor);
  job.num_candidates = num_candidates;
  job.num_features = num_features;
  job.candidate_ids = pointer<const int64_t>(candidate_ids);
  request.num_queries = num_queries;
  request.k = k;
  request.exclude_indptr = pointer<const int64_t>(exclude_indptr);
  request.exclude_indices = pointer<const int64_t>(exclude_indices);
  request.term_ulps = term_ulps;
  request.threads = threads;
  request.nan_worst = nan_worst;
  request.wide_scores = wide_scores;
  request.scores = pointer<void>(scores);
  request.ids = pointer<int64_t>(ids);

  const View bias_view = as_view_if(bias);
  const Isa& kernels = isa_named(isa);
  SweepStatus status;
  {
    Unlocked unlocked(threads);
    const Bias numbers(bias_view, num_rows);
    numbers.lend(job);
    request.bias_magnitude = numbers.magnitude();
    status = topk(kernels, request, unlocked.interrupted());
  }
  if (status.interrupted) throw py::error_already_set();
  return bad_rows(status);
}

}  // namespace

inline void bind_topk(py::module_& module) { module.def("topk", &py_topk); }

}  // namespace kgfast
