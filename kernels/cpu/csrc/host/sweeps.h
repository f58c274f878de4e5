// Parts that rankings and searches for the best share: the workers of a call, its plan and bounds,
// and the sweeps of a pass by the int8 tier or in float32.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "host/int8_pass.h"
#include "host/passes.h"

namespace kgfast {

// The bias of candidates: exact for canonical scores, rounded for the sweep.
class Bias {
 public:
  explicit Bias(const Operands& operands)
      : count_(operands.bias_view.data ? operands.rows.view.count : 0), exact_(count_),
        rounded_(count_) {
    if (count_) load_doubles(operands.bias_view, 0, 0, 0, count_, exact_.data);
    for (int64_t i = 0; i < count_; ++i) {
      const double x = exact_.data[i], size = std::fabs(x);
      rounded_.data[i] = static_cast<float>(x);
      if (i == 0 || !(x <= largest_)) largest_ = std::isnan(largest_) ? largest_ : x;
      if (!(size <= magnitude_)) magnitude_ = std::isnan(magnitude_) ? magnitude_ : size;
    }
  }
  void lend(SweepJob& job) const {
    if (!count_) return;
    job.bias = rounded_.data;
    job.bias_exact = exact_.data;
    job.bias_max = static_cast<float>(largest_);
  }
  double magnitude() const { return magnitude_; }  // the largest |bias|, or 0; NaN if one is

 private:
  const int64_t count_;
  Buffer<double> exact_;
  Buffer<float> rounded_;
  double largest_ = 0.0, magnitude_ = 0.0;
};

// `Owned` is a worker with its memory, made of WorkerMemory.
template <class Owned, class Job>
class Sweeps {
 protected:
  Sweeps(const Execution& execution, const Operands& operands, const std::vector<int64_t>& widths,
         bool checks_finite)
      : execution_(execution), isa_(execution.isa), num_queries_(operands.query.count),
        checks_finite_(checks_finite), bias_(operands) {
    static_cast<SweepJob&>(job_) = begin_sweep(isa_, operands);
    bias_.lend(job_);
    for (const int64_t width : widths) crops_.push_back({width, 0.0f});
    job_.crops = crops_.data();
    job_.num_crops = static_cast<int64_t>(crops_.size());
    job_.num_features = widths.back();
  }

  // Plans passes and bounds. `k`: the best k are wanted, for the choice of a tier; 0: others.
  void plan(int64_t most_queries, int64_t k) {
    plan_ = plan_passes(job_, execution_.threads, std::min(most_queries, kQueriesPerPass));
    for (int64_t crop = 0; crop < job_.num_crops; ++crop) {
      bounds_.push_back(crop_bound(isa_, job_, crop));
      crops_[crop].rel = round_up(bounds_[crop].rel);
    }
    set_norm(job_, bounds_.back());
    status_.interrupted = find_factor_reach(job_, plan_.threads, execution_.interrupted);
    int8_ = std::make_unique<Int8Pass>(execution_, job_, k);
    plan_.int8_bytes = int8_->worker_bytes(std::min(plan_.queries, num_queries_));
  }

  // Runs body(worker, task) for every task, on all threads. Notes rows with numbers that are not
  // finite, where these are errors.
  template <class Body>
  void parallel(int64_t count, Body body) {
    status_.interrupted |=
        kgfast::parallel(static_cast<int>(workers_.size()), count, execution_.interrupted,
                         [&](int i, int64_t task) { body(*workers_[i], task); });
    for (size_t i = 0; checks_finite_ && i < workers_.size(); ++i) {
      const Worker& worker = workers_[i]->worker;
      status_.bad_query = std::min(status_.bad_query, workers_[i]->bad_query);
      status_.bad_candidate = std::min(status_.bad_candidate, worker.bad_candidate);
      status_.bad_factor = std::min(status_.bad_factor, worker.bad_factor);
    }
  }

  // Calls sweep(worker, panel) for the int8 tier's panels, or sweep_wide(worker, index of a float32
  // panel) where rows lose too much.
  template <class Sweep, class Wide>
  void sweep_int8(Sweep sweep, Wide sweep_wide) {
    parallel(int8_->groups(job_.num_candidates), [&](Owned& owned, int64_t group) {
      int8_->sweep_group(
          group, owned.int8.data, owned.worker,
          [&](const Int8Panel& panel) { sweep(owned, panel); },
          [&](int64_t panel) { sweep_wide(owned, panel); });
    });
  }

  const Execution& execution_;
  const Isa& isa_;
  const int64_t num_queries_;
  const bool checks_finite_;  // numbers that are not finite are errors
  const Bias bias_;
  Job job_{};
  PassPlan plan_{};
  std::vector<Crop> crops_;
  std::vector<ErrorBound> bounds_;
  std::vector<std::unique_ptr<Owned>> workers_;
  std::unique_ptr<Int8Pass> int8_;
  PackedQueries packed_;
  SweepStatus status_;
};

}  // namespace kgfast
