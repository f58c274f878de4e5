#include "host/rank.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host/sweeps.h"

namespace kgfast {
namespace {

constexpr int64_t kBandCapacity = 8192;
constexpr int kKinds = 4;  // kinds of counts: greater, equal, and both of the excluded

// A worker and the memory that it points into.
struct RankWorker : WorkerMemory {
  RankWorker(const PassPlan& plan, const SweepJob& job)
      : WorkerMemory(plan, job), slots(job.num_crops * job.query.count), band(kBandCapacity),
        counts(kKinds * slots, 0) {
    lend(worker);
    worker.band = band.data;
    worker.band_capacity = kBandCapacity;
    worker.greater = counts.data();
    worker.equal = counts.data() + slots;
  }
  void count_excluded() {
    worker.greater = counts.data() + 2 * slots;
    worker.equal = counts.data() + 3 * slots;
  }
  const int64_t slots;  // C * B
  Buffer<Pair> band;
  std::vector<int64_t> counts;  // [4][C][B]
  Worker worker{};
};

class Ranking : Sweeps<RankWorker, SweepJob> {
 public:
  Ranking(const Execution& execution, const RankRequest& request)
      : Sweeps(execution, request.operands, request.widths, !request.nan_worst), request_(request),
        target_scores_(request.widths.size() * num_queries_) {
    job_.targets = request.targets;
    job_.target_scores = target_scores_.data();
    plan(kQueriesPerPass, 0);
    for (int i = 0; i < plan_.threads; ++i)
      workers_.push_back(std::make_unique<RankWorker>(plan_, job_));
  }

  SweepStatus count() {
    if (is_ok(status_)) score_targets();
    if (is_ok(status_)) find_order();
    if (is_ok(status_) && checks_finite_ && swept_.empty() && num_queries_) check_candidates();
    for (size_t first = 0; is_ok(status_) && first < swept_.size(); first += plan_.queries)
      sweep(first, std::min<size_t>(plan_.queries, swept_.size() - first));
    if (is_ok(status_)) exclude();
    if (is_ok(status_)) collect();
    return status_;
  }

  // Sweeps all queries in float32, each on its own, in order.
  void errors(float* values, double* bounds) {
    score_targets();
    for (int64_t query = 0; query < num_queries_; ++query)
      groups_.push_back({query}), swept_.push_back(query);
    prepare_pass(0, swept_.size());
    packed_.pack(execution_, job_);
    const int64_t lanes = job_.facts.lanes, rows = job_.num_crops * num_queries_;
    Worker& worker = workers_[0]->worker;
    std::vector<float> tile(rows * lanes);
    for (int64_t panel = 0; panel < plan_.panels; ++panel) {
      isa_.sweep_values(job_, panel, worker, tile.data());
      const int64_t first = panel * lanes, last = std::min(first + lanes, job_.num_candidates);
      for (int64_t row = 0; row < rows; ++row) {
        const Threshold& t = thresholds_[row];
        const int64_t crop = row / num_queries_;
        for (int64_t n = first; n < last; ++n) {
          const float value = tile[row * lanes + n - first];
          values[row * job_.num_candidates + n] = value;
          bounds[row * job_.num_candidates + n] =
              crops_[crop].rel * std::fabs(static_cast<double>(value)) + t.base +
              t.slope * worker.norms[crop];
        }
      }
    }
  }

 private:
  void score_targets() {
    constexpr int64_t block = 64;
    const int64_t count = num_queries_;
    parallel(divide_up(count, block), [&](RankWorker& owned, int64_t task) {
      Pair pairs[block];
      const int64_t first = task * block, size = std::min(block, count - first);
      for (int64_t i = 0; i < size; ++i) {
        pairs[i] = {first + i, job_.targets[first + i]};
        check_query(job_, pairs[i].query, &owned.bad_query);
        if (request_.target_scores) continue;
        check_candidate(job_, pairs[i].candidate, &owned.worker.bad_candidate,
                        &owned.worker.bad_factor);
      }
      for (int64_t crop = 0; crop < job_.num_crops; ++crop) {
        const int64_t slot = crop * count + first;
        if (request_.target_scores)
          std::copy_n(request_.target_scores + slot, size, target_scores_.data() + slot);
        else
          isa_.canonical(job_, crops_[crop].end, pairs, size, owned.worker.scratch,
                         target_scores_.data() + slot);
      }
    });
  }

  // Groups equal queries, so that each is swept once for all its targets, and sorts the groups by
  // how close the targets are: queries with close targets are abandoned early, in tiles of like
  // queries. The widest crop says which targets are close, for its limit is passed last.
  void find_order() {
    group_equal_queries();
    const int64_t widest = (job_.num_crops - 1) * num_queries_;
    std::vector<double> reach(groups_.size(), INFINITY);  // the lowest target score
    for (size_t g = 0; g < groups_.size(); ++g) {
      bool needed = false;  // a target whose score is NaN needs no sweep
      for (const int64_t query : groups_[g]) {
        for (int64_t crop = 0; crop < job_.num_crops; ++crop)
          needed |= !std::isnan(target_scores_[crop * num_queries_ + query]);
        const double score = target_scores_[widest + query];
        if (!std::isnan(score)) reach[g] = std::min(reach[g], score);
      }
      if (needed) swept_.push_back(static_cast<int64_t>(g));
    }
    std::stable_sort(swept_.begin(), swept_.end(),
                     [&](int64_t a, int64_t b) { return reach[a] > reach[b]; });
  }

  // Checks the candidates, which no sweep reads if no target's score is a number.
  void check_candidates() {
    constexpr int64_t block = 256;
    const int64_t count = job_.num_candidates;
    parallel(divide_up(count, block), [&](RankWorker& owned, int64_t task) {
      for (int64_t i = task * block; i < std::min((task + 1) * block, count); ++i)
        check_candidate(job_, job_.candidate_ids ? job_.candidate_ids[i] : i,
                        &owned.worker.bad_candidate, &owned.worker.bad_factor);
    });
  }

  void group_equal_queries() {
    std::unordered_map<std::string_view, size_t> group_of;
    for (int64_t query = 0; query < num_queries_; ++query) {
      const auto [at, is_new] = group_of.try_emplace(bytes_of(query), groups_.size());
      if (is_new) groups_.emplace_back();
      groups_[at->second].push_back(query);
    }
  }

  // Returns a row's memory, from its first number to its last one.
  std::string_view bytes_of(int64_t query) const {
    const View& view = job_.query;
    int64_t first = view.start[0], last = first;
    for (int plane = 0; plane < job_.facts.query_planes; ++plane)
      for (const int64_t end : {view.start[plane],
                                view.start[plane] + (job_.num_features - 1) * view.step}) {
        first = std::min(first, end);
        last = std::max(last, end);
      }
    const int64_t size = size_of(view.dtype);
    return {view.data + (query * view.row_stride + first) * size,
            static_cast<size_t>((last + 1 - first) * size)};
  }

  void prepare_pass(size_t first, size_t count) {
    thresholds_.clear();
    query_ids_.clear();
    first_threshold_.assign(1, 0);
    for (size_t i = first; i < first + count; ++i) query_ids_.push_back(groups_[swept_[i]][0]);
    for (int64_t crop = 0; crop < job_.num_crops; ++crop)
      for (size_t i = first; i < first + count; ++i) {
        for (const int64_t query : groups_[swept_[i]])
          if (!std::isnan(target_scores_[crop * num_queries_ + query]))
            thresholds_.push_back(threshold(crop, query));
        first_threshold_.push_back(static_cast<int64_t>(thresholds_.size()));
      }
    find_reaches(count);
    job_.query_ids = query_ids_.data();
    job_.num_queries = static_cast<int64_t>(count);
    job_.thresholds = thresholds_.data();
    job_.first_threshold = first_threshold_.data();
    job_.reaches = reaches_.data();
  }

  Threshold threshold(int64_t crop, int64_t query) const {
    const int64_t slot = crop * num_queries_ + query;
    const double target = target_scores_[slot];
    const AbsoluteError error = absolute_error(job_, crops_[crop].end, bounds_[crop], query,
                                               std::fabs(target) + bias_.magnitude());
    return {slot, static_cast<float>(-target), error.base, error.slope};
  }

  // Sets reaches: the largest tau + 1.25 err over a query's targets and the crops to come, with the
  // largest bias. A NaN becomes an infinity, which no total passes.
  void find_reaches(size_t count) {
    reaches_.assign(job_.num_crops * count, {-FLT_MAX, 0.0f});
    for (int64_t crop = job_.num_crops - 1; crop >= 0; --crop)
      for (size_t i = 0; i < count; ++i) {
        Reach& farthest = reaches_[crop * count + i];
        if (crop + 1 < job_.num_crops) farthest = reaches_[(crop + 1) * count + i];
        const int64_t* first = &first_threshold_[crop * count + i];
        for (int64_t t = first[0]; t < first[1]; ++t) {
          const float tau = thresholds_[t].minus_target + (job_.bias ? job_.bias_max : 0.0f);
          const double error = static_cast<double>(crops_[crop].rel) * std::fabs(tau);
          const float reach = round_up(tau + 1.25 * (error + thresholds_[t].base));
          farthest.reach = std::isnan(reach) ? INFINITY : std::max(farthest.reach, reach);
          farthest.slope = std::max(farthest.slope, 1.25f * thresholds_[t].slope);
        }
      }
  }

  void sweep(size_t first, size_t count) {
    prepare_pass(first, count);
    packed_.pack(execution_, job_);
    const auto sweep_wide = [&](RankWorker& owned, int64_t panel) {
      isa_.sweep_panel(job_, panel, owned.worker);
    };
    const bool is_int8 = int8_->serves(job_.num_queries);
    const int64_t rows = job_.num_crops * job_.num_queries;
    num_pairs_ += (is_int8 ? first_threshold_[rows] : rows) * job_.num_candidates;
    if (is_int8) {
      int8_->pack(job_);
      int8_->set_targets(target_scores_.data(), bias_.magnitude());
      const auto count_panel = [&](RankWorker& owned, const Int8Panel& panel) {
        int8_->tier().count_panel(int8_->job(), panel, int8_->scratch(owned.int8.data), isa_,
                                  owned.worker);
      };
      sweep_int8(count_panel, sweep_wide);
    } else {
      parallel(plan_.panels, sweep_wide);
    }
    for (const auto& owned : workers_) isa_.rescore_band(job_, owned->worker);
  }

  // Counts known answers. Equal queries with the same known answers share their scores.
  void exclude() {
    for (const auto& owned : workers_) owned->count_excluded();
    const int64_t groups = static_cast<int64_t>(groups_.size());
    parallel(groups * job_.num_crops, [&](RankWorker& owned, int64_t task) {
      exclude_group(groups_[task % groups], task / groups, owned.worker);
    });
  }

  void exclude_group(const std::vector<int64_t>& group, int64_t crop, Worker& worker) {
    std::vector<int64_t> scored;
    std::vector<double> scores;
    for (const int64_t query : group) {
      const std::vector<int64_t> ids = excluded_ids(query);
      const int64_t slot = crop * num_queries_ + query;
      if (std::isnan(target_scores_[slot])) {
        worker.greater[slot] += count_others(ids, query);
        continue;
      }
      if (ids != scored) {
        scored = ids;
        scores = canonical_of(query, crop, ids, worker);
      }
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == job_.targets[query]) continue;
        worker.greater[slot] += scores[i] > target_scores_[slot];
        worker.equal[slot] += scores[i] == target_scores_[slot];
      }
    }
  }

  std::vector<double> canonical_of(int64_t query, int64_t crop, const std::vector<int64_t>& ids,
                                   Worker& worker) const {
    std::vector<Pair> pairs;
    for (const int64_t id : ids) pairs.push_back({query, id});
    std::vector<double> scores(ids.size());
    isa_.canonical(job_, crops_[crop].end, pairs.data(), static_cast<int64_t>(pairs.size()),
                   worker.scratch, scores.data());
    return scores;
  }

  int64_t count_others(const std::vector<int64_t>& ids, int64_t query) const {
    return std::count_if(ids.begin(), ids.end(),
                         [&](int64_t id) { return id != job_.targets[query]; });
  }

  // Returns the known answers of a query that are candidates, each once.
  std::vector<int64_t> excluded_ids(int64_t query) const {
    std::vector<int64_t> ids = sorted_known(request_.known, query);
    ids.erase(
        std::remove_if(ids.begin(), ids.end(), [&](int64_t id) { return !is_candidate(id); }),
        ids.end());
    return ids;
  }

  void collect() {
    const int64_t rows = num_queries_, slots = job_.num_crops * rows;
    PairCounts& pairs = *request_.pairs;
    pairs = {num_pairs_, 0, {}};
    for (const auto& owned : workers_) {
      pairs.canonical += owned->worker.canonical;
      pairs.int8.swept += owned->worker.pairs.swept;
      pairs.int8.gathered += owned->worker.pairs.gathered;
      pairs.int8.canonical += owned->worker.pairs.canonical;
    }
    for (int64_t kind = 0; kind < kKinds; ++kind)
      for (int64_t slot = 0; slot < slots; ++slot) {
        int64_t sum = 0;
        for (const auto& owned : workers_) sum += owned->counts[kind * slots + slot];
        if (kind == 0 && std::isnan(target_scores_[slot]))
          sum = job_.num_candidates - is_candidate(job_.targets[slot % rows]);
        request_.counts[(slot / rows * kKinds + kind) * rows + slot % rows] = sum;
      }
  }

  bool is_candidate(int64_t id) const {
    const int64_t* subset = request_.sorted_candidate_ids;
    if (!job_.has_subset) return id >= 0;
    return std::binary_search(subset, subset + job_.num_candidates, id);
  }

  const RankRequest& request_;
  std::vector<double> target_scores_;  // [C][B]
  std::vector<std::vector<int64_t>> groups_;  // queries that are equal
  std::vector<int64_t> swept_;                // groups, in sweep order
  std::vector<int64_t> query_ids_, first_threshold_;
  std::vector<Threshold> thresholds_;
  std::vector<Reach> reaches_;
  int64_t num_pairs_ = 0;  // pairs of queries, or of targets where int8 serves, and candidates
};

}  // namespace

SweepStatus rank_counts(const Execution& execution, const RankRequest& request) {
  return Ranking(execution, request).count();
}

void sweep_errors(const Execution& execution, const RankRequest& request, float* values,
                  double* bounds) {
  Ranking(execution, request).errors(values, bounds);
}

}  // namespace kgfast
