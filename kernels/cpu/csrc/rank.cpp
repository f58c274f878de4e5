#include "rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "passes.h"

namespace kgfast {
namespace {

constexpr int64_t kBandCapacity = 8192;

// A worker and the memory that it points into.
struct OwnedWorker : WorkerMemory {
  OwnedWorker(const PassPlan& plan, int64_t queries)
      : WorkerMemory(plan), band(kBandCapacity), counts(4 * queries, 0) {
    lend(worker);
    worker.band = band.data;
    worker.band_capacity = kBandCapacity;
    worker.greater = counts.data();
    worker.equal = counts.data() + queries;
  }
  void count_excluded(int64_t queries) {
    worker.greater = counts.data() + 2 * queries;
    worker.equal = counts.data() + 3 * queries;
  }
  Buffer<Pair> band;
  std::vector<int64_t> counts;  // [4][B]
  Worker worker{};
};

class Ranking {
 public:
  Ranking(const Isa& isa, RankRequest& request, const std::function<bool()>& interrupted)
      : isa_(isa), request_(request), job_(request.job), interrupted_(interrupted),
        target_scores_(request.num_queries) {
    const bool rounded = job_.table.dtype == DType::f64 || job_.query.dtype == DType::f64;
    bound_ = error_bound(job_.score, job_.num_features, request.term_ulps, isa.sqrt_error,
                         rounded);
    job_.target_scores = target_scores_.data();
    check_finite_ = !request.nan_worst;
    plan_ = plan_passes(isa, job_, request.num_queries, request.threads);
    for (int i = 0; i < plan_.threads; ++i)
      workers_.push_back(std::make_unique<OwnedWorker>(plan_, request.num_queries));
  }

  SweepStatus count() {
    score_targets();
    if (is_ok(status_)) find_order();
    for (size_t first = 0; is_ok(status_) && first < swept_.size(); first += plan_.queries)
      sweep(first, std::min<size_t>(plan_.queries, swept_.size() - first));
    if (is_ok(status_)) exclude();
    if (is_ok(status_)) collect();
    return status_;
  }

  void errors(float* values, double* bounds) {
    score_targets();
    for (int64_t query = 0; query < request_.num_queries; ++query)
      groups_.push_back({query}), swept_.push_back(query);
    prepare_pass(0, swept_.size());
    const int64_t lanes = isa_.lanes(job_.score);
    std::vector<float> tile(swept_.size() * lanes);
    for (int64_t panel = 0; panel < plan_.panels; ++panel) {
      float norm = 0.0f;
      isa_.sweep_values(job_, panel, workers_[0]->worker, tile.data(), &norm);
      for (size_t q = 0; q < swept_.size(); ++q) {
        const Threshold& t = thresholds_[q];
        for (int64_t n = panel * lanes; n < std::min((panel + 1) * lanes, job_.num_candidates);
             ++n) {
          const float value = tile[q * lanes + n - panel * lanes];
          values[q * job_.num_candidates + n] = value;
          bounds[q * job_.num_candidates + n] =
              job_.rel * std::fabs(static_cast<double>(value)) + t.base + t.slope * norm;
        }
      }
    }
  }

 private:
  // Runs body(worker, task) for every task, on all threads.
  template <class Body>
  void parallel(int64_t count, Body body) {
    status_.interrupted |= run_tasks(plan_.threads, count, interrupted_, [&](int i, int64_t task) {
      body(*workers_[i], task);
    });
    if (!check_finite_) return;
    for (const auto& owned : workers_) {
      status_.bad_query = std::min(status_.bad_query, owned->bad_query);
      status_.bad_candidate = std::min(status_.bad_candidate, owned->worker.bad_candidate);
    }
  }

  void score_targets() {
    constexpr int64_t block = 64;
    const int64_t count = request_.num_queries;
    parallel((count + block - 1) / block, [&](OwnedWorker& owned, int64_t task) {
      Pair pairs[block];
      const int64_t first = task * block, size = std::min(block, count - first);
      for (int64_t i = 0; i < size; ++i) {
        pairs[i] = {first + i, job_.targets[first + i]};
        if (has_nonfinite(job_, job_.query, pairs[i].query))
          owned.bad_query = std::min(owned.bad_query, pairs[i].query);
        if (has_nonfinite(job_, job_.table, pairs[i].candidate))
          owned.worker.bad_candidate = std::min(owned.worker.bad_candidate, pairs[i].candidate);
      }
      isa_.canonical(job_, pairs, size, owned.worker.scratch, target_scores_.data() + first);
    });
  }

  // Groups the queries that are equal, so that each is swept once for all its targets, and orders
  // them: those whose targets lie close are abandoned early, and tiles of like queries together.
  void find_order() {
    group_equal_queries();
    std::vector<double> reach(groups_.size());  // the lowest target score; NaN ones need no sweep
    for (size_t g = 0; g < groups_.size(); ++g) {
      reach[g] = INFINITY;
      bool needed = false;
      for (const int64_t query : groups_[g]) {
        if (std::isnan(target_scores_[query])) continue;
        needed = true;
        reach[g] = std::min(reach[g], target_scores_[query]);
      }
      if (needed) swept_.push_back(static_cast<int64_t>(g));
    }
    std::stable_sort(swept_.begin(), swept_.end(),
                     [&](int64_t a, int64_t b) { return reach[a] > reach[b]; });
  }

  void group_equal_queries() {
    std::vector<std::pair<uint64_t, int64_t>> rows(request_.num_queries);
    for (int64_t query = 0; query < request_.num_queries; ++query)
      rows[query] = {hash_of(query), query};
    std::sort(rows.begin(), rows.end());
    size_t run = 0;  // first group of the present hash
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i == 0 || rows[i].first != rows[i - 1].first) run = groups_.size();
      size_t g = run;
      while (g < groups_.size() && !equal_queries(groups_[g][0], rows[i].second)) ++g;
      if (g == groups_.size()) groups_.emplace_back();
      groups_[g].push_back(rows[i].second);
    }
  }

  uint64_t hash_of(int64_t query) const {
    uint64_t hash = 0xCBF29CE484222325u;
    read_query(job_, query, [&](int, int64_t, int64_t width, const double* run) {
      for (int64_t i = 0; i < width; ++i)
        hash = (hash ^ bit_cast<uint64_t>(run[i])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
      return true;
    });
    return hash;
  }

  bool equal_queries(int64_t a, int64_t b) const {
    bool equal = true;
    read_query(job_, a, [&](int plane, int64_t k, int64_t width, const double* run) {
      double other[64];
      load_doubles(job_.query, b, plane, k, width, other);
      equal = std::memcmp(run, other, sizeof(double) * width) == 0;
      return equal;
    });
    return equal;
  }

  void prepare_pass(size_t first, size_t count) {
    thresholds_.clear();
    query_ids_.clear();
    first_threshold_.assign(1, 0);
    for (size_t i = first; i < first + count; ++i) {
      const std::vector<int64_t>& group = groups_[swept_[i]];
      for (const int64_t query : group)
        if (!std::isnan(target_scores_[query])) thresholds_.push_back(threshold(query));
      query_ids_.push_back(group[0]);
      first_threshold_.push_back(static_cast<int64_t>(thresholds_.size()));
    }
    job_.query_ids = query_ids_.data();
    job_.num_queries = static_cast<int64_t>(count);
    job_.thresholds = thresholds_.data();
    job_.first_threshold = first_threshold_.data();
    packed_.pack(isa_, job_);
    set_bound(job_, bound_);
  }

  Threshold threshold(int64_t query) const {
    const double target = target_scores_[query];
    const double bias = job_.bias ? request_.bias_magnitude : 0.0;
    Threshold result{query, static_cast<float>(-target), 0.0f, 0.0f};
    absolute_error(job_, bound_, query, std::fabs(target) + bias, &result.base, &result.slope);
    return result;
  }

  void sweep(size_t first, size_t count) {
    prepare_pass(first, count);
    parallel(plan_.panels, [&](OwnedWorker& owned, int64_t panel) {
      isa_.sweep_panel(job_, panel, owned.worker);
    });
    for (const auto& owned : workers_) isa_.decide_band(job_, owned->worker);
  }

  // Known answers are scored once for all targets of a query that have the same ones.
  void exclude() {
    for (const auto& owned : workers_) owned->count_excluded(request_.num_queries);
    parallel(static_cast<int64_t>(groups_.size()), [&](OwnedWorker& owned, int64_t group) {
      std::vector<int64_t> scored;
      std::vector<double> scores;
      for (const int64_t query : groups_[group]) {
        const std::vector<int64_t> ids = excluded_ids(query);
        if (std::isnan(target_scores_[query])) {
          owned.worker.greater[query] += count_others(ids, query);
          continue;
        }
        if (ids != scored) {
          scored = ids;
          scores = canonical_of(query, ids, owned.worker);
        }
        for (size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] == job_.targets[query]) continue;
          owned.worker.greater[query] += scores[i] > target_scores_[query];
          owned.worker.equal[query] += scores[i] == target_scores_[query];
        }
      }
    });
  }

  std::vector<double> canonical_of(int64_t query, const std::vector<int64_t>& ids,
                                   Worker& worker) const {
    std::vector<Pair> pairs;
    for (const int64_t id : ids) pairs.push_back({query, id});
    std::vector<double> scores(ids.size());
    isa_.canonical(job_, pairs.data(), static_cast<int64_t>(pairs.size()), worker.scratch,
                   scores.data());
    return scores;
  }

  int64_t count_others(const std::vector<int64_t>& ids, int64_t query) const {
    return std::count_if(ids.begin(), ids.end(),
                         [&](int64_t id) { return id != job_.targets[query]; });
  }

  // Known answers of a query that are candidates, each once.
  std::vector<int64_t> excluded_ids(int64_t query) const {
    std::vector<int64_t> ids =
        sorted_known(request_.exclude_indptr, request_.exclude_indices, query);
    ids.erase(
        std::remove_if(ids.begin(), ids.end(), [&](int64_t id) { return !is_candidate(id); }),
        ids.end());
    return ids;
  }

  void collect() {
    const int64_t queries = request_.num_queries;
    for (int kind = 0; kind < 4; ++kind)
      for (int64_t query = 0; query < queries; ++query) {
        int64_t sum = 0;
        for (const auto& owned : workers_) sum += owned->counts[kind * queries + query];
        request_.counts[kind][query] = sum;
      }
    for (int64_t query = 0; query < queries; ++query)
      if (std::isnan(target_scores_[query]))
        request_.counts[0][query] = job_.num_candidates - is_candidate(job_.targets[query]);
  }

  bool is_candidate(int64_t id) const {
    const int64_t* subset = request_.sorted_candidate_ids;
    return !subset || std::binary_search(subset, subset + job_.num_candidates, id);
  }

  const Isa& isa_;
  RankRequest& request_;
  SweepJob job_;
  const std::function<bool()>& interrupted_;
  PassPlan plan_;
  bool check_finite_ = true;
  ErrorBound bound_;
  std::vector<double> target_scores_;
  std::vector<std::vector<int64_t>> groups_;  // queries that are equal
  std::vector<int64_t> swept_;                // groups, in sweep order
  std::vector<int64_t> query_ids_, first_threshold_;
  std::vector<Threshold> thresholds_;
  PackedQueries packed_;
  std::vector<std::unique_ptr<OwnedWorker>> workers_;
  SweepStatus status_;
};

}  // namespace

SweepStatus rank_counts(const Isa& isa, RankRequest& request,
                        const std::function<bool()>& interrupted) {
  return Ranking(isa, request, interrupted).count();
}

void sweep_errors(const Isa& isa, RankRequest& request, float* values, double* bounds) {
  const std::function<bool()> never = [] { return false; };
  request.threads = 1;
  Ranking(isa, request, never).errors(values, bounds);
}

}  // namespace kgfast
