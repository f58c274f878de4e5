#include "host/rank.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "host/fpmode.h"
#include "host/scores.h"
#include "host/sweeps.h"
#include "host/topk.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 2048;
constexpr int64_t kPairsAtOnce = 128;  // pairs whose rows stay in the cache
constexpr int64_t kWidestVector = 16;

// Interval that certainly holds a canonical score; NaN if nothing is known.
struct Interval {
  double low, high;
};

// Memory of a thread.
struct ListWorker {
  explicit ListWorker(int64_t query_floats) : query(query_floats), scratch(kCanonicalScratch) {
    worker.bad_candidate = worker.bad_factor = INT64_MAX;
  }
  Buffer<float> query;
  Buffer<double> scratch;
  std::vector<float> near, squares;  // scores in float32, sums of squares of rows
  std::vector<Interval> intervals;
  std::vector<Pair> open;
  std::vector<double> scores;  // canonical scores of the open pairs
  Worker worker{};
  int64_t bad_query = INT64_MAX;
};

// Returns a view of one row.
View row_of(View view, int64_t row) {
  view.data += row * view.row_stride * size_of(view.dtype);
  view.count = 1;
  return view;
}

class Lists : Sweeps<ListWorker, SweepJob> {
 public:
  Lists(const Execution& execution, const ListRequest& request)
      : Sweeps(execution, request.operands, {request.num_features}, !request.nan_worst),
        request_(request) {
    const bool rounded = job_.rows.view.dtype == DType::f64 || job_.query.dtype == DType::f64;
    // Each lane sums runs of 64 vectors and a part, then the runs; a tree adds the lanes.
    const int64_t folds = job_.num_features / 64 + 8;
    bound_ = error_bound(job_.facts, job_.num_features + kWidestVector, folds, job_.term_ulps,
                         isa_.sqrt_error, rounded);
    // Canonical scores decide all pairs where no bound holds without panels or norms of magnitudes.
    is_bounded_ = !job_.facts.is_rscf && !rounded && std::isfinite(bound_.absolute) &&
                  bound_.rel < 0.25;
    const int64_t floats = isa_.scores->query_floats(job_.score, job_.num_features);
    for (int i = 0; i < std::max(execution.threads, 1); ++i)
      workers_.push_back(std::make_unique<ListWorker>(floats));
  }

  SweepStatus count(const int64_t* targets, int64_t* counts) {
    const int64_t queries = num_queries_, pairs = queries ? request_.lists.indptr[queries] : 0;
    targets_ = targets;
    counts_ = counts;
    std::fill(counts, counts + 4 * queries, 0);
    target_scores_.resize(queries);
    parallel(divide_up(queries, 64), [&](ListWorker& worker, int64_t task) {
      score_targets(worker, task * 64, std::min(task * 64 + 64, queries));
    });
    if (!is_ok(status_)) return status_;
    parallel(divide_up(pairs, kPairsPerTask), [&](ListWorker& worker, int64_t task) {
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
    parallel(num_queries_, [&](ListWorker& worker, int64_t query) {
      check_query(job_, query, &worker.bad_query);
      std::vector<Scored> best = best_of(worker, query, k);
      write_best(best, k, job_.query.dtype, query, scores, ids);
    });
    return status_;
  }

 private:
  // Computes canonical scores of the pairs in worker.open, and checks their rows.
  void score_open(ListWorker& worker) const {
    const FloatMode mode(FloatMode::kIeee);
    const int64_t count = static_cast<int64_t>(worker.open.size());
    worker.scores.resize(count);
    for (const Pair& pair : worker.open)
      check_candidate(job_, pair.candidate, &worker.worker.bad_candidate,
                      &worker.worker.bad_factor);
    isa_.canonical(job_, job_.num_features, worker.open.data(), count, worker.scratch.data,
                   worker.scores.data());
  }

  void score_targets(ListWorker& worker, int64_t first, int64_t last) {
    worker.open.clear();
    for (int64_t query = first; query < last; ++query) {
      check_query(job_, query, &worker.bad_query);
      worker.open.push_back({query, targets_[query]});
    }
    score_open(worker);
    std::copy(worker.scores.begin(), worker.scores.end(), target_scores_.begin() + first);
  }

  // Fills worker.intervals for `count` candidates of a query.
  void find_intervals(ListWorker& worker, int64_t query, const int64_t* ids, int64_t count) const {
    constexpr int64_t slot = 0;
    worker.intervals.assign(count, {NAN, NAN});
    if (!is_bounded_) return;
    worker.near.resize(count);
    ScoresJob job{};
    static_cast<Operands&>(job) = job_;
    job.query = row_of(job_.query, query);
    job.num_features = job_.num_features;
    job.crops = {&job_.num_features, &slot, 1};
    job.index = ids;
    job.per_query = count;
    job.out = worker.near.data();
    const bool has_norm = bound_.norm != Norm::none;
    worker.squares.resize(count);
    for (int64_t i = 0; i < count; i += kPairsAtOnce) {
      const int64_t last = std::min(i + kPairsAtOnce, count);
      isa_.scores->indexed(job, 0, i, last, worker.query.data);
      if (has_norm)
        isa_.scores->squares(job_.rows, ids + i, last - i, job_.num_features, &worker.squares[i]);
    }
    const double of_query =
        has_norm ? query_norm(job_, job_.num_features, bound_.norm, query) : 0.0;
    const double base = bound_.absolute + bound_.per_query * of_query + 0x1p-120;
    const double slope = bound_.per_pair * of_query + bound_.per_norm;
    const double terms = static_cast<double>(job_.num_features + kWidestVector);
    for (int64_t i = 0; i < count; ++i) {
      const double score = worker.near[i];
      double norm = 0.0;  // an upper bound: squares that are flushed are below 2^-126
      if (has_norm)
        norm = std::sqrt(double{worker.squares[i]}) * (1.0 + terms * 0x1p-22) + terms * 0x1p-62;
      // The bound is relative to the exact score, and `score` is near to the exact one.
      const double error = (bound_.rel * std::fabs(score) + base + slope * norm) /
                           (1.0 - bound_.rel) * (1.0 + 1e-6);
      const double bias = job_.bias_exact ? job_.bias_exact[ids[i]] : 0.0;  // rounding keeps order
      worker.intervals[i] = {score - error + bias, score + error + bias};
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
      if (!std::binary_search(known.begin(), known.end(), candidate)) return;
      counts[2] += is_greater;
      counts[3] += is_equal;
    };
    worker.open.clear();
    const bool is_worst = std::isnan(target);  // every other candidate beats it
    if (!is_worst) find_intervals(worker, query, ids, last - first);
    for (int64_t i = 0; i < last - first; ++i) {
      if (ids[i] == targets_[query]) continue;
      if (is_worst || worker.intervals[i].low > target)
        add(ids[i], true, false);
      else if (!(worker.intervals[i].high < target))
        worker.open.push_back({query, ids[i]});
    }
    score_open(worker);
    for (size_t i = 0; i < worker.open.size(); ++i)
      add(worker.open[i].candidate, worker.scores[i] > target, worker.scores[i] == target);
    for (int kind = 0; kind < 4; ++kind)  // lists of many pairs are several tasks
      if (counts[kind])
        __atomic_fetch_add(counts_ + kind * num_queries_ + query, counts[kind], __ATOMIC_RELAXED);
  }

  // Returns canonical scores of a query's candidates that may be among the best k.
  std::vector<Scored> best_of(ListWorker& worker, int64_t query, int64_t k) const {
    const std::vector<int64_t> known = sorted_known(request_.known, query);
    const int64_t* indptr = request_.lists.indptr;
    const int64_t* list = request_.lists.indices + indptr[query];
    const int64_t count = indptr[query + 1] - indptr[query];
    const auto is_known = [&](int64_t id) {
      return std::binary_search(known.begin(), known.end(), id);
    };
    if (count <= k)
      worker.intervals.assign(count, {NAN, NAN});
    else
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
    worker.open.clear();
    for (int64_t i = 0; i < count; ++i)
      if (!is_known(list[i]) && !(worker.intervals[i].high < limit))
        worker.open.push_back({query, list[i]});
    score_open(worker);
    std::vector<Scored> best;
    for (size_t i = 0; i < worker.open.size(); ++i)
      best.push_back({worker.scores[i], worker.open[i].candidate});
    return best;
  }

  const ListRequest& request_;
  ErrorBound bound_{};
  bool is_bounded_ = false;
  const int64_t* targets_ = nullptr;
  int64_t* counts_ = nullptr;
  std::vector<double> target_scores_;
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
