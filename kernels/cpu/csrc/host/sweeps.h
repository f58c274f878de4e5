// What rankings and searches share: the workers of a call, its plan and bounds, and the sweeps of a
// pass by a tier, in float32, or of lists.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "host/byte_pass.h"
#include "host/int8_pass.h"
#include "host/passes.h"
#include "host/scores.h"

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

class Sweeps {
 protected:
  // `lists`: the candidates of each query, each once; or no memory.
  Sweeps(const Execution& execution, const Operands& operands, const std::vector<int64_t>& widths,
         const Known& lists, bool checks_finite)
      : execution_(execution), isa_(execution.isa), num_queries_(operands.query.count),
        lists_(lists), checks_finite_(checks_finite), bias_(operands) {
    job_ = begin_sweep(isa_, operands);
    job_.isa = &isa_;
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
      bounds_.push_back(crop_bound(job_, crop, isa_.sqrt_error));
      crops_[crop].rel = round_up(relative_error(bounds_[crop]));
      list_bounds_.push_back(list_bound(crops_[crop].end));
    }
    job_.refined_rel = round_up(relative_error(crop_bound(job_, job_.num_crops - 1, 0x1p-24)));
    set_norm(job_, bounds_.back());
    status_.interrupted = find_factor_reach(job_, plan_.threads, execution_.interrupted);
    int8_ = std::make_unique<Int8Pass>(execution_, job_, k);
    bytes_ = std::make_unique<BytePass>(execution_, job_, k);
    if (lists_.indptr) {
      plan_.threads = std::max(execution_.threads, 1);
      job_.candidate_ids = lists_.indices;
    } else {
      plan_.int8_bytes = int8_->worker_bytes(std::min(plan_.queries, num_queries_));
    }
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

  // Finds the errors of the queries of a pass, job_.query_ids.
  void find_errors() {
    errors_.clear();
    for (int64_t crop = 0; crop < job_.num_crops; ++crop)
      for (int64_t i = 0; i < job_.num_queries; ++i)
        errors_.push_back(absolute_error(job_, crops_[crop].end, bounds_[crop], job_.query_ids[i],
                                         bias_.magnitude()));
    job_.errors = errors_.data();
  }

  bool is_int8() const { return !lists_.indptr && int8_->serves(job_.num_queries); }

  // Sweeps the candidates for the queries of a pass.
  void sweep_pass() {
    if (lists_.indptr) {
      parallel(job_.num_queries, [&](OwnedWorker& owned, int64_t i) { sweep_list(owned, i); });
      return;
    }
    if (reads_in_place()) {
      sweep_rows();
      return;
    }
    packed_.pack(execution_, job_);
    if (is_int8()) {
      int8_->pack(job_, bias_.magnitude());
      parallel(int8_->groups(job_.num_candidates), [&](OwnedWorker& owned, int64_t group) {
        int8_->sweep_group(group, owned.int8.data, owned.worker);
      });
    } else if (job_.question != Question::count && bytes_->serves(job_.num_queries)) {
      sweep_bytes();
    } else {
      parallel(plan_.panels, [&](OwnedWorker& owned, int64_t panel) {
        isa_.sweep_panel(job_, panel, owned.worker);
      });
    }
  }

  // Computes canonical scores of pairs.
  std::vector<double> canonical(int64_t features, const std::vector<Pair>& pairs,
                                Worker& worker) const {
    std::vector<double> scores(pairs.size());
    isa_.canonical(job_, features, pairs.data(), static_cast<int64_t>(pairs.size()),
                   worker.scratch, scores.data());
    return scores;
  }

  static constexpr int64_t kPairsAtOnce = 256;  // their rows stay in the cache
  static constexpr int64_t kPairsTaken = 64;
  static constexpr int64_t kWidestVector = 16;
  static constexpr int64_t kInPlaceProducts = 4, kInPlaceDistances = 2;  // queries, at most
  static constexpr int64_t kBlockBytes = 256 << 10;  // of rows that queries share

  // Rows that are read in place: `count` of them now, and others of `listed` later, maybe.
  struct RowsInPlace {
    const int64_t* ids;  // listed
    int64_t count, listed;
  };

  // Bounds the costs of a query with some candidates, whose rows are read in place, in a crop, and
  // notes rows that are not finite. NaNs where no bound holds.
  void find_costs(OwnedWorker& owned, int64_t crop, int64_t query, const RowsInPlace& rows,
                  float* lows, float* highs) const {
    const auto [ids, count, listed] = rows;
    const double* const bias = job_.bias_exact;
    const ErrorBound& bound = list_bounds_[crop];
    const int64_t features = crops_[crop].end;
    const double terms = static_cast<double>(features + kWidestVector);
    const bool is_bounded = std::isfinite(bound.absolute), has_norm = bound.norm != Norm::none;
    const double of_query = has_norm ? query_norm(job_, features, bound.norm, query) : 0.0;
    const double rel = relative_error(bound), up = (1.0 + 1e-6) / (1.0 - bound.rel);
    const double base = (bound.absolute + bound.per_query * of_query + 0x1p-120) * up;
    const double slope = (bound.per_pair * of_query + bound.per_norm) * up;
    float scores[kPairsAtOnce], squares[kPairsAtOnce] = {};
    ScoresJob job{};
    static_cast<Operands&>(job) = job_;
    job.query.data += query * job.query.row_stride * size_of(job.query.dtype);
    job.query.count = 1;
    job.num_features = features;
    job.crops = {&features, 1};
    job.index = ids;
    job.per_query = listed;
    job.out = scores;
    job.squares = has_norm ? squares : nullptr;
    if (is_bounded) isa_.scores->indexed(job, 0, 0, count, owned.query.data);
    if (!is_bounded) std::fill_n(scores, count, NAN);
    // Squares that are flushed are below 2^-126.
    const double of_norm = slope * (1.0 + terms * 0x1p-22), fixed = base + slope * terms * 0x1p-62;
    bool is_finite = true;
    double biases[kPairsAtOnce] = {};
    for (int64_t i = 0; bias && i < count; ++i) biases[i] = bias[ids[i]];
    for (int64_t i = 0; i < count; ++i) {
      const double distance = -double{scores[i]}, cost = distance - biases[i];
      const double norm = std::sqrt(squares[i]);
      const double off = rel * std::fabs(distance) + fixed + of_norm * norm;
      const double reach = off + (std::fabs(cost) + off) * 0x1p-23 + 0x1p-148;  // of float32
      lows[i] = static_cast<float>(cost - reach);
      highs[i] = static_cast<float>(cost + reach);
    }
    for (int64_t i = 0; i < count; ++i) is_finite &= std::isfinite(scores[i]);
    for (int64_t i = 0; i < count && !is_finite; ++i)
      if (!std::isfinite(scores[i]))
        check_candidate(job_, ids[i], &owned.worker.bad_candidate, &owned.worker.bad_factor);
  }

 private:
  // Sweeps runs of panels: a worker prefetches the next panel of a run while it sweeps one.
  void sweep_bytes() {
    constexpr int64_t most = 16;
    const int64_t panels = divide_up(job_.num_candidates, kByteCandidates);
    const int64_t run = std::clamp<int64_t>(panels / (8 * plan_.threads), 1, most);
    bytes_->pack(job_);
    parallel(divide_up(panels, run), [&](OwnedWorker& owned, int64_t task) {
      for (int64_t panel = task * run; panel < std::min((task + 1) * run, panels); ++panel)
        bytes_->sweep_panel(panel, owned.worker);
    });
    for (const auto& owned : workers_)
      for (int64_t i = 0; i < job_.num_queries; ++i) settle(job_, i, owned->worker);
  }

  // Returns the bound of rows that are read in place, features in lanes: each lane sums runs of 64
  // vectors and a part, then the runs; a tree adds the lanes. None holds without panels for rscf
  // scores, nor with rounded numbers.
  ErrorBound list_bound(int64_t features) const {
    // A Newton step leaves 3.4u of 1.5 * 2^-12, and rounds by 1.5u.
    constexpr double root = 6.0 * 0x1p-24;
    const bool rounded = job_.is_rounded();
    ErrorBound bound = error_bound(job_.facts, features + kWidestVector, features / 64 + 8,
                                   job_.term_ulps, root, false);
    if (rounded || job_.facts.is_rscf) bound.absolute = INFINITY;
    return bound;
  }

  // Sweeps the candidates that a query lists.
  void sweep_list(OwnedWorker& owned, int64_t position) {
    const int64_t query = job_.query_ids[position], end = lists_.indptr[query + 1];
    for (int64_t at = lists_.indptr[query]; at < end; at += kPairsAtOnce) {
      const int64_t left = end - at;
      answer(owned, position, at, {lists_.indices + at, std::min(kPairsAtOnce, left), left});
    }
  }

  // Answers for candidates of a query from place `first` on.
  void answer(OwnedWorker& owned, int64_t position, int64_t first, const RowsInPlace& rows) const {
    float lows[kPairsAtOnce] = {}, highs[kPairsAtOnce] = {};
    for (int64_t crop = 0; crop < job_.num_crops; ++crop) {
      find_costs(owned, crop, job_.query_ids[position], rows, lows, highs);
      for (int64_t i = 0; i < rows.count; i += kPairsTaken) {
        const int taken = static_cast<int>(std::min(kPairsTaken, rows.count - i));
        isa_.take(job_, crop, position, first + i, taken, lows + i, highs + i, owned.worker);
      }
    }
  }

  // True if a pass has so few queries that packing the rows takes longer than sweeping them. Rows
  // that are not plain float32 are converted for each query.
  bool reads_in_place() const {
    const bool is_product = job_.facts.terms == Terms::products;
    const bool is_direct = job_.rows.view.is_plain();
    const int64_t most = is_product ? kInPlaceProducts : kInPlaceDistances;
    return !job_.packed.panels && job_.num_crops == 1 && job_.num_features > 0 &&
           job_.num_queries <= (is_direct ? most : 1) && !is_int8() &&
           std::isfinite(list_bounds_[0].absolute);
  }

  // Sweeps all candidates, whose rows are read in place. A block of rows stays in the cache for all
  // queries.
  void sweep_rows() {
    const int64_t row_bytes = job_.num_features * job_.rows.planes * size_of(job_.rows.view.dtype);
    const int64_t block = std::clamp<int64_t>(kBlockBytes / row_bytes, 16, kPairsAtOnce);
    const int64_t end = job_.num_candidates, blocks = divide_up(end, block);
    const int64_t run = block * std::clamp<int64_t>(blocks / (8 * plan_.threads), 1, 8);
    parallel(divide_up(end, run), [&](OwnedWorker& owned, int64_t task) {
      int64_t ids[2 * kPairsAtOnce];
      for (int64_t at = task * run; at < std::min((task + 1) * run, end); at += block) {
        const int64_t listed = std::min(2 * block, end - at);
        for (int64_t i = 0; i < listed; ++i) ids[i] = candidate_of(job_, at + i);
        for (int64_t i = 0; i < job_.num_queries; ++i)
          answer(owned, i, at, {ids, std::min(block, listed), listed});
      }
    });
  }

 protected:
  const Execution& execution_;
  const Isa& isa_;
  const int64_t num_queries_;
  const Known lists_;
  const bool checks_finite_;  // numbers that are not finite are errors
  const Bias bias_;
  SweepJob job_{};
  PassPlan plan_{};
  std::vector<Crop> crops_;
  std::vector<ErrorBound> bounds_;
  std::vector<AbsoluteError> errors_;
  std::vector<float> limits_;
  std::vector<std::unique_ptr<OwnedWorker>> workers_;
  std::unique_ptr<Int8Pass> int8_;
  std::unique_ptr<BytePass> bytes_;
  PackedQueries packed_;
  SweepStatus status_;

 private:
  std::vector<ErrorBound> list_bounds_;
};

}  // namespace kgfast
