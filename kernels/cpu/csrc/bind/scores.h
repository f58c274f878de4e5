// Bindings of scores and of their gradients.
#pragma once
#include <algorithm>

#include "bind/python.h"
#include "host/backward.h"
#include "host/scores.h"
#include "scores/trig.h"

namespace kgfast {
namespace {

// `crops`: their widths, and the matrices of `out` that they fill. `index`: (rows, K), or None.
void py_scores(const Machine& machine, const py::tuple& operands,
               const std::pair<Widths, Widths>& crops, const MaybeTuple& index, uintptr_t out) {
  ScoresJob job{};
  static_cast<Operands&>(job) = as_operands(operands);
  const auto& [widths, slots] = crops;
  job.crops = {widths.data(), slots.data(), static_cast<int64_t>(widths.size())};
  job.num_features = widths.back();
  job.index = index ? pointer<const int64_t>((*index)[0]) : nullptr;
  job.per_query = index ? (*index)[1].cast<int64_t>() : job.rows.view.count;
  job.bias = reinterpret_cast<const float*>(job.bias_view.data);
  job.out = pointer<float>(out);
  stop_if(compute(machine, [&](const Execution& execution) { return scores(execution, job); }));
}

// `grad`: (pointer, stride of crops, of rows, of columns), in elements. `gradients`: views of the
// gradients of queries, rows and factor; None: not computed.
template <class Job>
Job backward_job(const py::tuple& operands, const Widths& widths, const py::tuple& grad,
                 const py::tuple& gradients) {
  Job job{};
  static_cast<Operands&>(job) = as_operands(operands);
  job.grad = {pointer<const float>(grad[0]), grad[1].cast<int64_t>(), grad[2].cast<int64_t>(),
              grad[3].cast<int64_t>(), widths.data(), static_cast<int64_t>(widths.size())};
  job.grad_query = as_view_if(gradients[0]);
  job.grad_rows = {as_view_if(gradients[1]), as_view_if(gradients[2]), job.rows.planes};
  return job;
}

void py_pairwise_backward(const Machine& machine, const py::tuple& operands, const Widths& widths,
                          const py::tuple& grad, const py::tuple& gradients, bool adds_to_rows) {
  auto job = backward_job<PairwiseBackwardJob>(operands, widths, grad, gradients);
  job.adds_to_rows = adds_to_rows;
  stop_if(compute(machine,
                  [&](const Execution& execution) { return pairwise_backward(execution, job); }));
}

// `groups`: (ids, order, first, count, whether gradients are of the whole table).
void py_indexed_backward(const Machine& machine, const py::tuple& operands, const Widths& widths,
                         const py::tuple& grad, const py::tuple& gradients,
                         const std::pair<uintptr_t, int64_t>& index, const MaybeTuple& groups) {
  auto job = backward_job<IndexedBackwardJob>(operands, widths, grad, gradients);
  Widths ascending = widths;
  std::sort(ascending.begin(), ascending.end());
  ascending.erase(std::unique(ascending.begin(), ascending.end()), ascending.end());
  job.widths = ascending.data();
  job.num_features = ascending.back();
  job.index = pointer<const int64_t>(index.first);
  job.per_query = index.second;
  if (groups)
    job.groups = {pointer<const int64_t>((*groups)[0]), pointer<const int64_t>((*groups)[1]),
                  pointer<const int64_t>((*groups)[2]), (*groups)[3].cast<int64_t>(),
                  (*groups)[4].cast<bool>()};
  stop_if(compute(machine,
                  [&](const Execution& execution) { return indexed_backward(execution, job); }));
}

// Computes cosine and sine of float64 radians.
void py_cos_sin(const Machine& machine, uintptr_t phases, int64_t count, uintptr_t cosine,
                uintptr_t sine) {
  const auto* from = pointer<const double>(phases);
  auto *real = pointer<double>(cosine), *imaginary = pointer<double>(sine);
  compute(machine, [&](const Execution&) {
    for (int64_t i = 0; i < count; ++i) {
      const CosSin turn = cos_sin(from[i] + 0.0);  // + 0.0 makes 0 of -0
      real[i] = turn.cosine;
      imaginary[i] = turn.sine;
    }
  });
}

void bind_scores(py::Methods& methods) {
  methods.def<&py_cos_sin>("cos_sin");
  methods.def<&py_scores>("scores");
  methods.def<&py_pairwise_backward>("pairwise_backward");
  methods.def<&py_indexed_backward>("indexed_backward");
}

}  // namespace
}  // namespace kgfast
