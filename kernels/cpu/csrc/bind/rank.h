// Bindings of ranks and of the best k candidates.
#pragma once
#include "bind/python.h"
#include "host/rank.h"
#include "host/topk.h"

namespace kgfast {
namespace {

// `targets`: their ids, and the candidates' ids in order, or 0.
py::tuple py_rank_counts(const Machine& machine, const py::tuple& operands, const Widths& widths,
                         const std::pair<uintptr_t, uintptr_t>& targets, const MaybeTuple& known,
                         bool nan_worst, uintptr_t counts) {
  RankRequest request{};
  request.operands = as_operands(operands);
  request.widths = widths;
  request.targets = pointer<const int64_t>(targets.first);
  request.sorted_candidate_ids = pointer<const int64_t>(targets.second);
  request.known = as_known(known);
  request.nan_worst = nan_worst;
  request.counts = pointer<int64_t>(counts);
  return bad_rows(compute(machine, [&](const Execution& execution) {
    return rank_counts(execution, request);
  }));
}

void py_sweep_errors(const std::string& isa, const py::tuple& operands, const Widths& widths,
                     uintptr_t targets, uintptr_t values, uintptr_t bounds) {
  RankRequest request{};
  request.operands = as_operands(operands);
  request.widths = widths;
  request.targets = pointer<const int64_t>(targets);
  const FloatMode mode(FloatMode::kIeee);
  sweep_errors(isa_named(isa), request, pointer<float>(values), pointer<double>(bounds));
}

// `best`: scores and ids, [B, k] each.
py::tuple py_topk(const Machine& machine, const py::tuple& operands, int64_t width, int64_t k,
                  const MaybeTuple& known, bool nan_worst,
                  const std::pair<uintptr_t, uintptr_t>& best) {
  TopkRequest request{};
  request.operands = as_operands(operands);
  request.num_features = width;
  request.k = k;
  request.known = as_known(known);
  request.nan_worst = nan_worst;
  request.scores = pointer<void>(best.first);
  request.ids = pointer<int64_t>(best.second);
  return bad_rows(
      compute(machine, [&](const Execution& execution) { return topk(execution, request); }));
}

void bind_rank(py::module_& module) {
  module.def("rank_counts", &py_rank_counts);
  module.def("sweep_errors", &py_sweep_errors);
  module.def("topk", &py_topk);
}

}  // namespace
}  // namespace kgfast
