#include "host/listed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "host/fpmode.h"
#include "host/passes.h"
#include "host/scores.h"
#include "host/topk.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 2048;
constexpr int64_t kWidestVector = 16;

// Interval that certainly holds a canonical score; NaN if nothing is known.
struct Interval {
  double low, high;
};

// Memory of a thread.
struct ListWorker {
  explicit ListWorker(int64_t query_floats) : query(query_floats), scratch(kCanonicalScratch) {}
  Buffer<float> query;
  Buffer<double> scratch;
  std::vector<float> distances, squares;
  std::vector<Interval> intervals;
  std::vector<Pair> open;
  std::vector<double> scores;
  SweepStatus status;
};

class Lists {
 public:
  Lists(const Execution& execution, const ListRequest& request)
      : execution_(execution), isa_(execution.isa), request_(request),
        job_(begin_sweep(isa_, request.operands)) {
    job_.num_features = request.num_features;
    const bool rounded = job_.rows.view.dtype == DType::f64 || job_.query.dtype == DType::f64;
    // Each lane sums runs of 64 vectors and a part, then the runs; a tree adds the lanes.
    const int64_t folds = job_.num_features / 64 + 8;
    bound_ = error_bound(job_.facts, job_.num_features + kWidestVector, folds, job_.term_ulps,
                         isa_.sqrt_error, rounded);
    // Canonical scores decide all pairs where no bound holds without panels or norms of magnitudes.
    is_bounded_ = !job_.facts.is_rscf && !rounded && std::isfinite(bound_.absolute) &&
                  bound_.rel < 0.25;
  }

  SweepStatus count(const int64_t* targets, int64_t* counts) {
    const int64_t queries = job_.query.count, pairs = queries ? request_.lists.indptr[queries] : 0;
    targets_ = targets;
    counts_ = counts;
    std::fill(counts, counts + 4 * queries, 0);
    target_scores_.resize(queries);
    run(divide_up(queries, 64), [&](ListWorker& worker, int64_t task) {
      score_targets(worker, task * 64, std::min(task * 64 + 64, queries));
    });
    if (!is_ok(status_)) return status_;
    run(divide_up(pairs, kPairsPerTask), [&](ListWorker& worker, int64_t task) {
      const int64_t first = task * kPairsPerTask, last = std::min(first + kPairsPerTask, pairs);
      const int64_t* indptr = request_.lists.indptr;
      int64_t query = std::upper_bound(indptr, indptr + queries + 1, first) - indptr - 1;
      for (int64_t at = first; at < last; ++query) {
        const int64_t stop = std::min(indptr[query + 1], last);
        if (at < stop) count_part(worker, query, at, stop);
        at = stop;
      }
    });
    return status_;
  }

  SweepStatus topk(int64_t k, void* scores, int64_t* ids) {
    run(job_.query.count, [&](ListWorker& worker, int64_t query) {
      std::vector<Scored> best = best_of(worker, query, k);
      const int64_t count = std::min(k, static_cast<int64_t>(best.size()));
      std::partial_sort(best.begin(), best.begin() + count, best.end(), is_better);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = query * k + i;
        const double score = i < count ? best[i].score : -double{INFINITY};
        ids[at] = i < count ? best[i].candidate : -1;
        if (job_.query.dtype == DType::f64)
          static_cast<double*>(scores)[at] = score;
        else
          static_cast<float*>(scores)[at] = static_cast<float>(score);
      }
    });
    return status_;
  }

 private:
  // Runs body(worker, task) for every task, and notes rows with numbers that are not finite.
  template <class Body>
  void run(int64_t tasks, Body body) {
    const int threads = threads_for(tasks, execution_.threads);
    const int64_t floats = isa_.scores->query_floats(job_.score, job_.num_features);
    while (static_cast<int>(workers_.size()) < threads)
      workers_.push_back(std::make_unique<ListWorker>(floats));
    status_.interrupted |=
        parallel(threads, tasks, execution_.interrupted,
                 [&](int worker, int64_t task) { body(*workers_[worker], task); });
    for (const auto& worker : workers_) {
      status_.bad_query = std::min(status_.bad_query, worker->status.bad_query);
      status_.bad_candidate = std::min(status_.bad_candidate, worker->status.bad_candidate);
      status_.bad_factor = std::min(status_.bad_factor, worker->status.bad_factor);
    }
  }

  void check_row(ListWorker& worker, int64_t row) const {
    if (!request_.nan_worst)
      check_candidate(job_, row, &worker.status.bad_candidate, &worker.status.bad_factor);
  }

  double bias(int64_t row) const {
    double value = 0.0;
    load_doubles(job_.bias_view, 0, 0, row, 1, &value);
    return value;
  }

  // Computes canonical scores of the pairs in worker.open, and checks their rows.
  void score_open(ListWorker& worker) const {
    const FloatMode mode(FloatMode::kIeee);
    worker.scores.resize(worker.open.size());
    for (const Pair& pair : worker.open) check_row(worker, pair.candidate);
    isa_.canonical(job_, job_.num_features, worker.open.data(),
                   static_cast<int64_t>(worker.open.size()), worker.scratch.data,
                   worker.scores.data());
    if (!job_.bias_view.data) return;  // the bias comes last
    for (size_t i = 0; i < worker.open.size(); ++i)
      worker.scores[i] += bias(worker.open[i].candidate);
  }

  void score_targets(ListWorker& worker, int64_t first, int64_t last) {
    worker.open.clear();
    for (int64_t query = first; query < last; ++query) {
      if (!request_.nan_worst) check_query(job_, query, &worker.status.bad_query);
      worker.open.push_back({query, targets_[query]});
    }
    score_open(worker);
    std::copy(worker.scores.begin(), worker.scores.end(), target_scores_.begin() + first);
  }

  // Fills worker.intervals for `count` candidates of a query.
  void find_intervals(ListWorker& worker, int64_t query, const int64_t* ids, int64_t count) const {
    worker.intervals.assign(count, {NAN, NAN});
    if (!is_bounded_) return;
    worker.distances.resize(count);
    worker.squares.resize(count);
    isa_.lists->distances(job_, query, ids, count, worker.query.data, worker.distances.data(),
                          worker.squares.data());
    const bool has_norm = bound_.norm != Norm::none;
    const double terms = static_cast<double>(job_.num_features + kWidestVector);
    const double of_query =
        has_norm ? query_norm(job_, job_.num_features, bound_.norm, query) : 0.0;
    const double base = bound_.absolute + bound_.per_query * of_query + 0x1p-120;
    const double slope = bound_.per_pair * of_query + bound_.per_norm;
    for (int64_t i = 0; i < count; ++i) {
      double norm = 0.0;  // upper bound of the row's norm: flushed squares are below 2^-126
      if (has_norm)
        norm = std::sqrt(static_cast<double>(worker.squares[i])) * (1.0 + terms * 0x1p-22) +
               terms * 0x1p-62;
      const double distance = worker.distances[i];
      // The bound is relative to the exact distance, and `distance` is near to the exact one.
      const double error = (bound_.rel * std::fabs(distance) + base + slope * norm) /
                           (1.0 - bound_.rel) * (1.0 + 1e-6);
      worker.intervals[i] = {-(distance + error), -(distance - error)};
      if (job_.bias_view.data) {  // rounding keeps the order
        const double added = bias(ids[i]);
        worker.intervals[i].low += added;
        worker.intervals[i].high += added;
      }
    }
  }

  // Counts the pairs [first, last) of the lists, which are one query's.
  void count_part(ListWorker& worker, int64_t query, int64_t first, int64_t last) {
    const int64_t* ids = request_.lists.indices + first;
    const double target = target_scores_[query];
    const std::vector<int64_t> known = sorted_known(request_.known, query);
    int64_t counts[4] = {};
    const auto add = [&](int64_t candidate, bool is_greater, bool is_equal) {
      counts[0] += is_greater;
      counts[1] += is_equal;
      if (known.empty() || !std::binary_search(known.begin(), known.end(), candidate)) return;
      counts[2] += is_greater;
      counts[3] += is_equal;
    };
    worker.open.clear();
    if (std::isnan(target)) {  // the worst: every other candidate beats it
      for (int64_t i = 0; i < last - first; ++i)
        if (ids[i] != targets_[query]) add(ids[i], true, false);
    } else {
      find_intervals(worker, query, ids, last - first);
      for (int64_t i = 0; i < last - first; ++i) {
        if (ids[i] == targets_[query]) continue;
        const Interval& at = worker.intervals[i];
        if (at.low > target)
          add(ids[i], true, false);
        else if (!(at.high < target))
          worker.open.push_back({query, ids[i]});
      }
    }
    score_open(worker);
    for (size_t i = 0; i < worker.open.size(); ++i)
      add(worker.open[i].candidate, worker.scores[i] > target, worker.scores[i] == target);
    for (int kind = 0; kind < 4; ++kind)  // lists of many pairs are several tasks
      if (counts[kind])
        __atomic_fetch_add(counts_ + kind * job_.query.count + query, counts[kind],
                           __ATOMIC_RELAXED);
  }

  // Returns canonical scores of a query's candidates that may be among the best k.
  std::vector<Scored> best_of(ListWorker& worker, int64_t query, int64_t k) const {
    if (!request_.nan_worst) check_query(job_, query, &worker.status.bad_query);
    const std::vector<int64_t> known = sorted_known(request_.known, query);
    const int64_t *list = request_.lists.indices + request_.lists.indptr[query],
                  *end = request_.lists.indices + request_.lists.indptr[query + 1];
    const int64_t count = end - list;
    const auto is_known = [&](int64_t id) {
      return !known.empty() && std::binary_search(known.begin(), known.end(), id);
    };
    worker.open.clear();
    if (count <= k) {
      for (int64_t i = 0; i < count; ++i)
        if (!is_known(list[i])) worker.open.push_back({query, list[i]});
    } else {
      find_intervals(worker, query, list, count);
      std::vector<double> lows;
      for (int64_t i = 0; i < count; ++i)
        if (!is_known(list[i]) && worker.intervals[i].low > -double{INFINITY})
          lows.push_back(worker.intervals[i].low);
      double limit = -double{INFINITY};
      if (static_cast<int64_t>(lows.size()) >= k) {
        std::nth_element(lows.begin(), lows.begin() + k - 1, lows.end(), std::greater<double>());
        limit = lows[k - 1];
      }
      for (int64_t i = 0; i < count; ++i)
        if (!is_known(list[i]) && !(worker.intervals[i].high < limit))
          worker.open.push_back({query, list[i]});
    }
    score_open(worker);
    std::vector<Scored> best;
    for (size_t i = 0; i < worker.open.size(); ++i)
      best.push_back({worker.scores[i], worker.open[i].candidate});
    return best;
  }

  const Execution& execution_;
  const Isa& isa_;
  const ListRequest& request_;
  SweepJob job_;
  ErrorBound bound_{};
  bool is_bounded_ = false;
  const int64_t* targets_ = nullptr;
  int64_t* counts_ = nullptr;
  std::vector<double> target_scores_;
  std::vector<std::unique_ptr<ListWorker>> workers_;
  SweepStatus status_;
};

}  // namespace

SweepStatus list_counts(const Execution& execution, const ListRequest& request,
                        const int64_t* targets, int64_t* counts) {
  return Lists(execution, request).count(targets, counts);
}

SweepStatus list_topk(const Execution& execution, const ListRequest& request, int64_t k,
                      void* scores, int64_t* ids) {
  return Lists(execution, request).topk(k, scores, ids);
}

}  // namespace kgfast
