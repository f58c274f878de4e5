// Bindings of optimizers of rows. Python has checked the arguments.
#pragma once
#include "bind/bindings.h"
#include "host/row_adam.h"

namespace kgfast {
namespace {

void py_row_adam(const std::vector<uintptr_t>& tables, uintptr_t ids, uintptr_t gradients,
                 int64_t count, int64_t width, const std::vector<double>& betas, double step_size,
                 double root_scale, double eps, double weight_decay, int threads) {
  RowAdamJob job{};
  job.table = pointer<float>(tables.at(0));
  job.first_moment = pointer<float>(tables.at(1));
  job.second_moment = pointer<float>(tables.at(2));
  job.ids = pointer<const int64_t>(ids);
  job.gradients = pointer<const float>(gradients);
  job.count = count;
  job.width = width;
  job.first_share = static_cast<float>(1.0 - betas.at(0));
  job.second_share = static_cast<float>(1.0 - betas.at(1));
  job.step_size = static_cast<float>(step_size);
  job.root_scale = static_cast<float>(root_scale);
  job.eps = static_cast<float>(eps);
  job.weight_decay = static_cast<float>(weight_decay);
  const Unlocked unlocked(threads);
  row_adam(job, threads);
}

}  // namespace

inline void bind_optim(py::module_& module) { module.def("row_adam", &py_row_adam); }

}  // namespace kgfast
