#include "rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "bounds.h"
#include "buffer.h"
#include "load.h"
#include "pool.h"
#include "tasks.h"

namespace kgfast {
namespace {

constexpr int64_t kPackedQueryBytes = 12 << 20;   // of all queries of one pass
constexpr int64_t kPanelBytes = 1 << 20;          // of one worker, at most
constexpr int64_t kScratchBytes = 24 << 20;       // of all workers together
constexpr int64_t kQueriesPerPass = 4096;
constexpr int64_t kBandCapacity = 8192;

// A worker and the memory that it points into.
struct OwnedWorker {
  OwnedWorker(int64_t panel_floats, int64_t total_floats, int64_t tiles, int64_t queries)
      : panel(panel_floats), totals(total_floats), alive(tiles), band(kBandCapacity),
        scratch(kCanonicalScratch), counts(4 * queries, 0) {
    worker = {panel.data, totals.data, alive.data, band.data, 0, kBandCapacity, scratch.data,
              counts.data(), counts.data() + queries, INT64_MAX};
  }
  void count_excluded(int64_t queries) {
    worker.greater = counts.data() + 2 * queries;
    worker.equal = counts.data() + 3 * queries;
  }
  Buffer<float> panel, totals;
  Buffer<uint8_t> alive;
  Buffer<Pair> band;
  Buffer<double> scratch;
  std::vector<int64_t> counts;  // [4][B]
  int64_t bad_query = INT64_MAX;
  Worker worker;
};

// The smallest float that is not below x.
float round_up(double x) {
  const float y = static_cast<float>(x);
  return static_cast<double>(y) >= x || std::isnan(y)
             ? y
             : std::nextafter(y, std::numeric_limits<float>::infinity());
}

class Ranking {
 public:
  Ranking(const Isa& isa, RankRequest& request, const std::function<bool()>& interrupted)
      : isa_(isa), request_(request), job_(request.job), interrupted_(interrupted),
        lanes_(isa.lanes(job_.score)), tile_(isa.tile_queries(job_.score)),
        target_scores_(request.num_queries) {
    const bool rounded = job_.table.dtype == DType::f64 || job_.query.dtype == DType::f64;
    bound_ = error_bound(job_.score, job_.num_features, request.term_ulps, isa.sqrt_error,
                         rounded);
    job_.target_scores = target_scores_.data();
    check_finite_ = !request.nan_worst;
    plan();
  }

  RankStatus count() {
    score_targets();
    if (ok()) find_order();
    for (size_t first = 0; ok() && first < swept_.size(); first += queries_per_pass_)
      sweep(first, std::min<size_t>(queries_per_pass_, swept_.size() - first));
    if (ok()) exclude();
    if (ok()) collect();
    return status_;
  }

  void errors(float* values, double* bounds) {
    score_targets();
    for (int64_t query = 0; query < request_.num_queries; ++query)
      groups_.push_back({query}), swept_.push_back(query);
    prepare_pass(0, swept_.size());
    const int64_t panels = (job_.num_candidates + lanes_ - 1) / lanes_;
    std::vector<float> tile(swept_.size() * lanes_);
    for (int64_t panel = 0; panel < panels; ++panel) {
      float norm = 0.0f;
      isa_.sweep_values(job_, panel, workers_[0]->worker, tile.data(), &norm);
      for (size_t q = 0; q < swept_.size(); ++q) {
        const Threshold& t = thresholds_[q];
        for (int64_t n = panel * lanes_; n < std::min((panel + 1) * lanes_, job_.num_candidates);
             ++n) {
          const float value = tile[q * lanes_ + n - panel * lanes_];
          values[q * job_.num_candidates + n] = value;
          bounds[q * job_.num_candidates + n] =
              job_.rel * std::fabs(static_cast<double>(value)) + t.base + t.slope * norm;
        }
      }
    }
  }

 private:
  bool ok() const {
    return !status_.interrupted && status_.bad_query == INT64_MAX &&
           status_.bad_candidate == INT64_MAX;
  }

  // Sizes: how many features a panel holds, how many queries a pass, how many threads.
  void plan() {
    const int64_t row_floats = job_.num_features * job_.planes;
    const int64_t panels = (job_.num_candidates + lanes_ - 1) / lanes_;
    threads_ = static_cast<int>(
        std::clamp<int64_t>(request_.threads, 1, std::max<int64_t>(panels, 1)));
    const int64_t feature_bytes = job_.planes * lanes_ * sizeof(float);
    const int64_t panel_bytes = std::min(kPanelBytes, kScratchBytes / 2 / threads_);
    const int64_t block = std::max<int64_t>(64, panel_bytes / feature_bytes / 64 * 64);
    job_.features_per_block = std::min(job_.num_features, block);
    const int64_t fit = kPackedQueryBytes / std::max<int64_t>(1, row_floats * sizeof(float));
    const int64_t totals_fit = kScratchBytes / 2 / threads_ / (lanes_ * sizeof(float));
    const bool blocked = job_.features_per_block < job_.num_features;
    int64_t queries = std::min(fit, kQueriesPerPass);
    if (blocked) queries = std::min(queries, totals_fit);
    queries_per_pass_ = std::max<int64_t>(tile_, queries / tile_ * tile_);
    const int64_t per_pass = std::min<int64_t>(queries_per_pass_, request_.num_queries + tile_);
    for (int i = 0; i < threads_; ++i)
      workers_.push_back(std::make_unique<OwnedWorker>(
          job_.features_per_block * job_.planes * lanes_, blocked ? per_pass * lanes_ : 0,
          per_pass / tile_ + 1, request_.num_queries));
  }

  // Runs body(worker, task) for every task, on all threads.
  template <class Body>
  void parallel(int64_t count, Body body) {
    Tasks tasks(count, interrupted_);
    Pool::run(threads_, [&](int i) {
      for (int64_t task; (task = tasks.next(i)) >= 0;) body(*workers_[i], task);
    });
    status_.interrupted |= tasks.stopped();
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
        if (has_nonfinite(job_.query, pairs[i].query))
          owned.bad_query = std::min(owned.bad_query, pairs[i].query);
        if (has_nonfinite(job_.table, pairs[i].candidate))
          owned.worker.bad_candidate = std::min(owned.worker.bad_candidate, pairs[i].candidate);
      }
      isa_.canonical(job_, pairs, size, owned.worker.scratch, target_scores_.data() + first);
    });
  }

  bool has_nonfinite(const View& view, int64_t row) const {
    float run[256];
    bool bad = false;
    for (int plane = 0; plane < job_.planes; ++plane)
      for (int64_t k = 0; k < job_.num_features; k += 256)
        bad |= load_floats(view, row, plane, k, std::min<int64_t>(256, job_.num_features - k), run);
    return bad;
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

  // Calls body with runs of a query row as doubles, plane by plane, until it returns false.
  template <class Body>
  void read_query(int64_t query, Body body) const {
    double run[64];
    for (int plane = 0; plane < job_.planes; ++plane)
      for (int64_t k = 0; k < job_.num_features; k += 64) {
        const int64_t width = std::min<int64_t>(64, job_.num_features - k);
        load_doubles(job_.query, query, plane, k, width, run);
        if (!body(plane, k, width, run)) return;
      }
  }

  uint64_t hash_of(int64_t query) const {
    uint64_t hash = 0xCBF29CE484222325u;
    read_query(query, [&](int, int64_t, int64_t width, const double* run) {
      for (int64_t i = 0; i < width; ++i)
        hash = (hash ^ bit_cast<uint64_t>(run[i])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
      return true;
    });
    return hash;
  }

  bool equal_queries(int64_t a, int64_t b) const {
    bool equal = true;
    read_query(a, [&](int plane, int64_t k, int64_t width, const double* run) {
      double other[64];
      load_doubles(job_.query, b, plane, k, width, other);
      equal = std::memcmp(run, other, sizeof(double) * width) == 0;
      return equal;
    });
    return equal;
  }

  void prepare_pass(size_t first, size_t count) {
    const size_t padded = (count + tile_ - 1) / tile_ * tile_;
    const size_t floats = padded * job_.num_features * job_.planes;
    if (floats > packed_floats_) {
      packed_ = std::make_unique<Buffer<float>>(floats);
      packed_floats_ = floats;
    }
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
    job_.packed_queries = packed_->data;
    isa_.pack_queries(job_, packed_->data);
    job_.rel = round_up(bound_.rel);
    job_.norm = bound_.norm;
    const double terms = static_cast<double>(job_.num_features) * job_.planes;
    job_.norm_inflation = round_up(1.0 + (terms + 16.0) * 0x1p-22);
    job_.norm_floor = round_up(terms * 0x1p-124);
  }

  Threshold threshold(int64_t query) const {
    constexpr double u = 0x1p-24;
    const double target = target_scores_[query];
    const double norm = bound_.norm ? query_norm(query) : 0.0;
    const double bias = job_.bias ? request_.bias_magnitude : 0.0;
    const double base = bound_.absolute + bound_.per_query * norm +
                        4.0 * u * (std::fabs(target) + bias) + 0x1p-120;
    const double slope = bound_.norm ? bound_.per_pair * norm + bound_.per_norm : 0.0;
    return {query, static_cast<float>(-target), round_up(base * (1.0 + 8.0 * u)),
            round_up(slope * (1.0 + 8.0 * u))};
  }

  double query_norm(int64_t query) const {
    double sum = 0.0;
    read_query(query, [&](int, int64_t, int64_t width, const double* run) {
      for (int64_t i = 0; i < width; ++i)
        sum += bound_.norm == 1 ? std::fabs(run[i]) : run[i] * run[i];
      return true;
    });
    // Squares of float64 values may underflow; the floor is far below anything that matters.
    return (bound_.norm == 1 ? sum : std::sqrt(sum)) * (1.0 + 1e-6) + 0x1p-500;
  }

  void sweep(size_t first, size_t count) {
    prepare_pass(first, count);
    const int64_t panels = (job_.num_candidates + lanes_ - 1) / lanes_;
    parallel(panels, [&](OwnedWorker& owned, int64_t panel) {
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
    std::vector<int64_t> ids(request_.exclude_indices + request_.exclude_indptr[query],
                             request_.exclude_indices + request_.exclude_indptr[query + 1]);
    if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
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
  const int lanes_, tile_;
  int threads_ = 1;
  bool check_finite_ = true;
  int64_t queries_per_pass_ = 1;
  ErrorBound bound_;
  std::vector<double> target_scores_;
  std::vector<std::vector<int64_t>> groups_;  // queries that are equal
  std::vector<int64_t> swept_;                // groups, in sweep order
  std::vector<int64_t> query_ids_, first_threshold_;
  std::vector<Threshold> thresholds_;
  std::unique_ptr<Buffer<float>> packed_;
  size_t packed_floats_ = 0;
  std::vector<std::unique_ptr<OwnedWorker>> workers_;
  RankStatus status_;
};

}  // namespace

RankStatus rank_counts(const Isa& isa, RankRequest& request,
                       const std::function<bool()>& interrupted) {
  return Ranking(isa, request, interrupted).count();
}

void sweep_errors(const Isa& isa, RankRequest& request, float* values, double* bounds) {
  const std::function<bool()> never = [] { return false; };
  request.threads = 1;
  Ranking(isa, request, never).errors(values, bounds);
}

}  // namespace kgfast
