// Bindings of the passes of losses and of optimizers.
#pragma once
#include "bind/python.h"
#include "host/adagrad.h"
#include "host/losses.h"
#include "host/row_adam.h"

namespace kgfast {
namespace {

// `scores`: (pointer, rows, columns). `sums` are float64, `factors` (shift, scale, share) float32
// numbers of each row, or 0.
void py_loss_pass(const Machine& machine, int pass, const py::tuple& scores,
                  const std::vector<uintptr_t>& sums, const std::vector<uintptr_t>& factors,
                  double constant) {
  LossTile tile{};
  tile.scores = pointer<float>(scores[0]);
  tile.rows = scores[1].cast<int64_t>();
  tile.columns = scores[2].cast<int64_t>();
  tile.a = pointer<double>(sums.at(0));
  tile.b = pointer<double>(sums.at(1));
  tile.c = pointer<double>(sums.at(2));
  tile.shift = pointer<const float>(factors.at(0));
  tile.scale = pointer<const float>(factors.at(1));
  tile.share = pointer<const float>(factors.at(2));
  tile.constant = static_cast<float>(constant);
  compute(machine, [&](const Execution& execution) {
    loss_pass(execution, static_cast<LossPass>(pass), tile);
  });
}

// `rows`: (ids, gradients, count, width). `rates`: step size, scale of the root, eps, weight decay.
void py_row_adam(int threads, const std::vector<uintptr_t>& tables, const py::tuple& rows,
                 const std::vector<double>& betas, const std::vector<double>& rates) {
  RowAdamJob job{};
  job.table = pointer<float>(tables.at(0));
  job.first_moment = pointer<float>(tables.at(1));
  job.second_moment = pointer<float>(tables.at(2));
  job.ids = pointer<const int64_t>(rows[0]);
  job.gradients = pointer<const float>(rows[1]);
  job.count = rows[2].cast<int64_t>();
  job.width = rows[3].cast<int64_t>();
  job.first_share = static_cast<float>(1.0 - betas.at(0));
  job.second_share = static_cast<float>(1.0 - betas.at(1));
  job.step_size = static_cast<float>(rates.at(0));
  job.root_scale = static_cast<float>(rates.at(1));
  job.eps = static_cast<float>(rates.at(2));
  job.weight_decay = static_cast<float>(rates.at(3));
  const Unlocked unlocked(threads);
  row_adam(job, threads);
}

// `rows`: (ids or 0, gradients, count of numbers, width). `rates`: rate, eps, weight decay.
void py_adagrad(const Machine& machine, const std::vector<uintptr_t>& tables,
                const py::tuple& rows, const std::vector<double>& rates) {
  AdagradJob job{};
  job.table = pointer<float>(tables.at(0));
  job.sum = pointer<float>(tables.at(1));
  job.ids = pointer<const int64_t>(rows[0]);
  job.gradient = pointer<const float>(rows[1]);
  job.count = rows[2].cast<int64_t>();
  job.width = rows[3].cast<int64_t>();
  job.rate = static_cast<float>(rates.at(0));
  job.eps = static_cast<float>(rates.at(1));
  job.weight_decay = static_cast<float>(rates.at(2));
  compute(machine, [&](const Execution& execution) { adagrad(execution, job); });
}

void bind_losses(py::Methods& methods) {
  methods.def<&py_loss_pass>("loss_pass");
  methods.def<&py_row_adam>("row_adam");
  methods.def<&py_adagrad>("adagrad");
}

}  // namespace
}  // namespace kgfast
