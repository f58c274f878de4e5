// Scores, their gradients, passes of losses. Python has made the outputs, checked everything and
// sorted the crops.
#pragma once
#include "bind/bindings.h"
#include "host/indexed.h"
#include "host/losses.h"
#include "host/pairwise.h"

namespace kgfast {
namespace {

void stop_if(bool was_interrupted) {
  if (was_interrupted) throw py::error_already_set();
}

// Rows of `planes` planes, and their factor.
Rows as_rows(const MaybeView& spec, const MaybeView& factor, int planes) {
  return {as_view_if(spec), as_view_if(factor), planes};
}

int planes_in(const py::tuple& spec) {
  return static_cast<int>(spec[3].cast<std::vector<int64_t>>().size());
}

bool has_own_planes(ScoreId score) { return score >= ScoreId::rscf_rotate; }

bool sweep_pool(const Isa& kernels, ScoreId score, const py::tuple& query, const py::tuple& table,
                int64_t num_queries, int64_t num_candidates, const std::vector<int64_t>& widths,
                const std::vector<int64_t>& slots, uintptr_t bias, int threads, uintptr_t out) {
  PairwiseJob job{};
  job.sweep.score = score;
  job.sweep.planes = planes_in(table);
  job.sweep.query = as_view(query);
  job.sweep.table = as_view(table);
  job.sweep.bias = pointer<const float>(bias);
  job.sweep.num_candidates = num_candidates;
  job.sweep.num_features = widths.back();
  job.widths = widths.data();
  job.slots = slots.data();
  job.num_widths = static_cast<int64_t>(widths.size());
  job.all_queries = num_queries;
  job.out = pointer<float>(out);
  Unlocked unlocked(threads);
  return pairwise_scores(kernels, job, threads, unlocked.interrupted());
}

IndexedJob indexed_job(ScoreId score, const py::tuple& query, const py::tuple& table,
                       const MaybeView& factor, int64_t num_queries, int64_t per_query,
                       const std::vector<int64_t>& widths, const std::vector<int64_t>& slots,
                       uintptr_t bias, uintptr_t out) {
  IndexedJob job{};
  job.score = score;
  job.query = as_view(query);
  job.rows = as_rows(table, factor, planes_in(table));
  job.num_queries = num_queries;
  job.per_query = per_query;
  job.num_features = widths.back();
  job.widths = widths.data();
  job.slots = slots.data();
  job.num_widths = static_cast<int64_t>(widths.size());
  job.bias = pointer<const float>(bias);
  job.out = pointer<float>(out);
  return job;
}

void py_pairwise_scores(const std::string& isa, int code, const py::tuple& query,
                        const py::tuple& table, const MaybeView& factor, int64_t num_queries,
                        int64_t num_candidates, const std::vector<int64_t>& widths,
                        const std::vector<int64_t>& slots, uintptr_t bias, int threads,
                        uintptr_t out) {
  const auto score = static_cast<ScoreId>(code);
  const Isa& kernels = isa_named(isa);
  if (!has_own_planes(score))
    return stop_if(sweep_pool(kernels, score, query, table, num_queries, num_candidates, widths,
                              slots, bias, threads, out));
  const IndexedJob job = indexed_job(score, query, table, factor, num_queries, num_candidates,
                                     widths, slots, bias, out);
  bool stopped;
  {
    Unlocked unlocked(threads);
    stopped = pool_scores(kernels, job, threads, unlocked.interrupted());
  }
  stop_if(stopped);
}

// (pointer, stride of crops, of rows, of columns), in elements
ScoreGradient as_gradient(const py::tuple& spec, const std::vector<int64_t>& widths) {
  return {pointer<const float>(spec[0].cast<uintptr_t>()),
          spec[1].cast<int64_t>(),
          spec[2].cast<int64_t>(),
          spec[3].cast<int64_t>(),
          widths.data(),
          static_cast<int64_t>(widths.size())};
}

void py_pairwise_backward(const std::string& isa, int score, const py::tuple& grad,
                          const py::tuple& query, const py::tuple& table, const MaybeView& factor,
                          int64_t num_queries, int64_t num_candidates,
                          const std::vector<int64_t>& widths, const MaybeView& grad_query,
                          const MaybeView& grad_table, const MaybeView& grad_factor,
                          bool add_to_rows, int threads) {
  PullJob job{};
  job.score = static_cast<ScoreId>(score);
  job.grad = as_gradient(grad, widths);
  job.query = as_view(query);
  job.rows = as_rows(table, factor, planes_in(table));
  job.num_queries = num_queries;
  job.num_candidates = num_candidates;
  job.grad_query = as_view_if(grad_query);
  job.grad_rows = as_rows(grad_table, grad_factor, job.rows.planes);
  job.add_to_rows = add_to_rows;
  const Isa& kernels = isa_named(isa);
  bool stopped;
  {
    Unlocked unlocked(threads);
    stopped = pairwise_backward(kernels, job, threads, unlocked.interrupted());
  }
  stop_if(stopped);
}

void py_indexed_scores(const std::string& isa, int score, const py::tuple& query,
                       const py::tuple& table, const MaybeView& factor, uintptr_t index,
                       int64_t num_queries, int64_t per_query, const std::vector<int64_t>& widths,
                       const std::vector<int64_t>& slots, uintptr_t bias, int threads,
                       uintptr_t out) {
  IndexedJob job = indexed_job(static_cast<ScoreId>(score), query, table, factor, num_queries,
                               per_query, widths, slots, bias, out);
  job.index = pointer<const int64_t>(index);
  const Isa& kernels = isa_named(isa);
  bool stopped;
  {
    Unlocked unlocked(threads);
    stopped = indexed_scores(kernels, job, threads, unlocked.interrupted());
  }
  stop_if(stopped);
}

void py_indexed_backward(const std::string& isa, int score, const py::tuple& grad,
                         const py::tuple& query, const py::tuple& table, const MaybeView& factor,
                         uintptr_t index, int64_t num_queries, int64_t per_query,
                         const std::vector<int64_t>& widths,
                         const std::vector<int64_t>& ascending, const MaybeView& grad_query,
                         const MaybeView& grad_rows, const MaybeView& grad_factor,
                         bool whole_table, uintptr_t ids, uintptr_t order, uintptr_t first,
                         int64_t num_ids, int threads) {
  IndexedPullJob job{};
  job.score = static_cast<ScoreId>(score);
  job.grad = as_gradient(grad, widths);
  job.query = as_view(query);
  job.rows = as_rows(table, factor, planes_in(table));
  job.index = pointer<const int64_t>(index);
  job.num_queries = num_queries;
  job.per_query = per_query;
  job.num_features = ascending.back();
  job.widths = ascending.data();
  job.grad_query = as_view_if(grad_query);
  job.grad_rows = as_rows(grad_rows, grad_factor, job.rows.planes);
  job.whole_table = whole_table;
  job.ids = pointer<const int64_t>(ids);
  job.order = pointer<const int64_t>(order);
  job.first = pointer<const int64_t>(first);
  job.num_ids = num_ids;
  const Isa& kernels = isa_named(isa);
  bool stopped = false;
  {
    Unlocked unlocked(threads);
    if (grad_query) stopped = indexed_pull_queries(kernels, job, threads, unlocked.interrupted());
    if ((grad_rows || grad_factor) && !stopped)
      stopped = indexed_pull_rows(kernels, job, threads, unlocked.interrupted());
  }
  stop_if(stopped);
}

// `sums` are float64, `factors` (shift, scale, share) float32 numbers of each row, or 0.
void py_loss_pass(const std::string& isa, int pass, uintptr_t scores, int64_t rows,
                  int64_t columns, const std::vector<uintptr_t>& sums,
                  const std::vector<uintptr_t>& factors, double constant, int threads) {
  LossTile tile{};
  tile.scores = pointer<float>(scores);
  tile.rows = rows;
  tile.columns = columns;
  tile.a = pointer<double>(sums.at(0));
  tile.b = pointer<double>(sums.at(1));
  tile.c = pointer<double>(sums.at(2));
  tile.shift = pointer<const float>(factors.at(0));
  tile.scale = pointer<const float>(factors.at(1));
  tile.share = pointer<const float>(factors.at(2));
  tile.constant = static_cast<float>(constant);
  const Isa& kernels = isa_named(isa);
  Unlocked unlocked(threads);
  loss_pass(kernels, static_cast<LossPass>(pass), tile, threads);
}

}  // namespace

inline void bind_scores(py::module_& module) {
  module.def("pairwise_scores", &py_pairwise_scores);
  module.def("pairwise_backward", &py_pairwise_backward);
  module.def("indexed_scores", &py_indexed_scores);
  module.def("indexed_backward", &py_indexed_backward);
  module.def("loss_pass", &py_loss_pass);
}

}  // namespace kgfast
