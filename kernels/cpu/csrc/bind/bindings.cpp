// kgfast.kernels._cpu: pointers, sizes and strides in, counts out. Python has checked them.
//
// One unit for all bindings: reading pybind11 takes as long as compiling what uses it here.
#include "host/bias.h"
#include "bind/bindings.h"
#include "bind/bindings_optim.h"
#include "bind/bindings_scores.h"
#include "bind/bindings_topk.h"
#include "host/rank.h"

namespace kgfast {
namespace {

// Fills what ranking and the test of the bound have in common.
RankRequest make_request(int score, const py::tuple& query, const py::tuple& table,
                         const py::object& factor, int64_t num_queries, int64_t num_candidates,
                         const std::vector<int64_t>& widths, int term_ulps, uintptr_t targets) {
  RankRequest request{};
  SweepJob& job = request.job;
  set_operands(job, score, query, table, factor);
  job.num_candidates = num_candidates;
  job.num_rows = num_queries;
  job.targets = pointer<const int64_t>(targets);
  request.widths = widths;
  request.term_ulps = term_ulps;
  return request;
}

py::tuple py_rank_counts(const std::string& isa, int score, const py::tuple& query,
                         const py::tuple& table, const py::object& factor, int64_t num_queries,
                         int64_t num_candidates, const std::vector<int64_t>& widths,
                         int term_ulps, uintptr_t targets, uintptr_t exclude_indptr,
                         uintptr_t exclude_indices, const MaybeView& bias, int64_t num_rows,
                         const MaybePointer& candidate_ids, uintptr_t sorted_candidate_ids,
                         bool nan_worst, int threads, uintptr_t counts) {
  RankRequest request = make_request(score, query, table, factor, num_queries, num_candidates,
                                     widths, term_ulps, targets);
  request.has_subset = candidate_ids.has_value();
  request.job.candidate_ids = pointer<const int64_t>(candidate_ids.value_or(0));
  request.sorted_candidate_ids = pointer<const int64_t>(sorted_candidate_ids);
  request.exclude_indptr = pointer<const int64_t>(exclude_indptr);
  request.exclude_indices = pointer<const int64_t>(exclude_indices);
  request.counts = pointer<int64_t>(counts);
  request.threads = threads;
  request.nan_worst = nan_worst;

  const View bias_view = as_view_if(bias);
  const Isa& kernels = isa_named(isa);
  SweepStatus status;
  {
    Unlocked unlocked(threads);
    const Bias numbers(bias_view, num_rows);
    numbers.lend(request.job);
    request.bias_magnitude = numbers.magnitude();
    status = rank_counts(kernels, request, unlocked.interrupted());
  }
  if (status.interrupted) throw py::error_already_set();
  return bad_rows(status);
}

void py_sweep_errors(const std::string& isa, int score, const py::tuple& query,
                     const py::tuple& table, const py::object& factor, int64_t num_queries,
                     int64_t num_candidates, const std::vector<int64_t>& widths, int term_ulps,
                     uintptr_t targets, uintptr_t values, uintptr_t bounds) {
  RankRequest request = make_request(score, query, table, factor, num_queries, num_candidates,
                                     widths, term_ulps, targets);
  const FloatMode mode(FloatMode::kIeee);
  sweep_errors(isa_named(isa), request, pointer<float>(values), pointer<double>(bounds));
}

double py_roof(const std::string& isa, int score, int64_t features, double seconds) {
  const Isa& kernels = isa_named(isa);
  const Unlocked unlocked(1);
  return roof(kernels, static_cast<ScoreId>(score), features, seconds);
}

std::string py_find_isa(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  return isa ? isa->name : "";
}

}  // namespace
}  // namespace kgfast

PYBIND11_MODULE(_cpu, module) {
  const auto main = pybind11::module_::import("threading").attr("main_thread")();
  kgfast::note_main_thread(main.attr("ident").cast<unsigned long>());
  module.doc() = "SIMD kernels of kgfast for the CPU";
  kgfast::bind_scores(module);
  kgfast::bind_topk(module);
  kgfast::bind_optim(module);
  module.def("rank_counts", &kgfast::py_rank_counts);
  module.def("sweep_errors", &kgfast::py_sweep_errors);
  module.def("roof", &kgfast::py_roof);
  module.def("find_isa", &kgfast::py_find_isa);
}
