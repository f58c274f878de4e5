#include "host/rank.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/fpmode.h"
#include "host/sweeps.h"

namespace kgfast {
namespace {

constexpr int64_t kBandCapacity = 1024;  // their rows stay in the cache
constexpr int kKinds = 4;  // kinds of counts: greater, equal, and both of the excluded
constexpr size_t kSharing = 16;  // queries for which it pays to move all candidates

// Turn of the candidates that queries share (SweepJob).
struct SharedTurn {
  std::vector<float> shared;
  int terms = 0;
};

// Queries that are swept at once, some of `swept_`.
struct Pass {
  size_t first, count;
  SharedTurn turn;
};

class Ranking : Sweeps {
 public:
  Ranking(const Execution& execution, const RankRequest& request)
      : Sweeps(execution, request.operands, request.widths, request.lists, !request.nan_worst),
        request_(request), slots_(job_.num_crops * num_queries_), target_scores_(slots_) {
    job_.question = request.recorded ? Question::record : Question::count;
    job_.recorded = request.recorded;
    job_.resolve = resolve;
    job_.owner = this;
    plan(kQueriesPerPass, 0);
    counts_.assign(plan_.threads, std::vector<int64_t>(kKinds * slots_, 0));
    for (int i = 0; i < plan_.threads; ++i) {
      workers_.push_back(std::make_unique<OwnedWorker>(plan_, job_, kBandCapacity, 0));
      count_into(i, 0);
    }
  }

  SweepStatus run() {
    if (is_ok(status_)) score_targets();
    if (is_ok(status_)) find_order();
    if (is_ok(status_) && checks_finite_ && swept_.empty() && num_queries_ && !lists_.indptr)
      check_candidates();
    if (is_ok(status_)) cut_passes();
    for (size_t i = 0; is_ok(status_) && i < passes_.size(); ++i) sweep(passes_[i]);
    if (request_.recorded) return status_;
    if (is_ok(status_)) exclude();
    if (is_ok(status_)) collect();
    return status_;
  }

 private:
  // Lets a worker count greater and equal scores as kinds `kind` and `kind` + 1.
  void count_into(int i, int kind) {
    workers_[i]->worker.greater = counts_[i].data() + kind * slots_;
    workers_[i]->worker.equal = counts_[i].data() + (kind + 1) * slots_;
  }

  void score_targets() {
    constexpr int64_t block = 64;
    const int64_t count = num_queries_;
    parallel(divide_up(count, block), [&](OwnedWorker& owned, int64_t task) {
      Pair pairs[block];
      const int64_t first = task * block, size = std::min(block, count - first);
      for (int64_t i = 0; i < size; ++i) {
        pairs[i] = {first + i, request_.targets[first + i]};
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

  // Groups equal queries, so that a group is swept once for all its targets, and sorts the groups
  // by the distance of the targets: the sweep abandons a tile early if the targets of all its
  // queries are close. The distance is that of the widest crop, whose limit is passed last.
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
      if (needed || request_.recorded) swept_.push_back(static_cast<int64_t>(g));
    }
    if (request_.recorded) return;
    std::stable_sort(swept_.begin(), swept_.end(),
                     [&](int64_t a, int64_t b) { return reach[a] > reach[b]; });
  }

  // Checks the candidates, which no sweep reads if no target's score is a number.
  void check_candidates() {
    constexpr int64_t block = 256;
    const int64_t count = job_.num_candidates;
    parallel(divide_up(count, block), [&](OwnedWorker& owned, int64_t task) {
      for (int64_t i = task * block; i < std::min((task + 1) * block, count); ++i)
        check_candidate(job_, candidate_of(job_, i),
                        &owned.worker.bad_candidate, &owned.worker.bad_factor);
    });
  }

  void group_equal_queries() {
    const int last = job_.facts.query_planes - 1;
    std::unordered_map<std::string_view, size_t> group_of;
    for (int64_t query = 0; query < num_queries_; ++query) {
      // Each has candidates, or results, of its own; or has the numbers of others between its own.
      if (lists_.indptr || request_.recorded || job_.query.step > 4) {
        groups_.push_back({query});
        continue;
      }
      const auto [at, is_new] = group_of.try_emplace(bytes_of(query, 0, last), groups_.size());
      if (is_new) groups_.emplace_back();
      groups_[at->second].push_back(query);
    }
  }

  // Cuts the swept groups into passes. Queries of one relation share w and nearly a: if enough of
  // them are near enough, they have passes of their own, which move the candidates once. All
  // results that are recorded have one pass.
  void cut_passes() {
    std::vector<std::vector<int64_t>> alike;
    if (job_.facts.has_phase && job_.num_crops == 1 && job_.query.step == 1) {
      std::unordered_map<std::string_view, size_t> place_of;
      for (const int64_t g : swept_) {
        const auto [at, is_new] =
            place_of.try_emplace(bytes_of(groups_[g][0], 2, 3), alike.size());
        if (is_new) alike.emplace_back();
        alike[at->second].push_back(g);
      }
    }
    std::vector<int64_t> order;
    std::vector<bool> shares(groups_.size());
    for (const std::vector<int64_t>& some : alike) {
      if (request_.recorded && some.size() < swept_.size()) continue;
      const SharedTurn turn = shared_by(some);
      if (!turn.terms) continue;
      add_passes(order.size(), some.size(), turn);
      for (const int64_t g : some) {
        order.push_back(g);
        shares[g] = true;
      }
    }
    const size_t first = order.size();
    std::copy_if(swept_.begin(), swept_.end(), std::back_inserter(order),
                 [&](int64_t g) { return !shares[g]; });
    add_passes(first, order.size() - first, {});
    swept_ = std::move(order);
  }

  void add_passes(size_t first, size_t count, const SharedTurn& turn) {
    const size_t most = plan_.queries;
    for (size_t at = 0; at < count; at += most)
      passes_.push_back({first + at, std::min(most, count - at), turn});
  }

  // Returns the w and the mean of a of some groups, or nothing if these cannot share a turn.
  SharedTurn shared_by(const std::vector<int64_t>& some) {
    if (some.size() < kSharing) return {};
    const int64_t features = job_.num_features;
    SharedTurn turn{std::vector<float>(3 * features)};
    float* shared = turn.shared.data();
    std::vector<double> sum(features), a(features);
    const int64_t any = groups_[some[0]][0];
    for (const int plane : {0, 1})
      load_floats(job_.query, any, 2 + plane, 0, features, shared + plane * features);
    for (const int64_t g : some) {
      load_doubles(job_.query, groups_[g][0], 4, 0, features, a.data());
      for (int64_t k = 0; k < features; ++k) sum[k] += a[k];
    }
    for (int64_t k = 0; k < features; ++k)
      shared[2 * features + k] = static_cast<float>(sum[k] / static_cast<double>(some.size()));
    for (turn.terms = 1; turn.terms <= 2; ++turn.terms) {
      share(turn);
      if (std::all_of(some.begin(), some.end(),
                      [&](int64_t g) { return can_share(job_, groups_[g][0]); }))
        return turn;
    }
    return {};
  }

  void share(const SharedTurn& turn) {
    job_.shared = turn.shared.data();
    job_.shared_terms = turn.terms;
  }

  // Returns the memory of some planes of a row, from the first number to the last one.
  std::string_view bytes_of(int64_t query, int first_plane, int last_plane) const {
    const View& view = job_.query;
    int64_t first = view.start[first_plane], last = first;
    for (int plane = first_plane; plane <= last_plane; ++plane)
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
    limits_.assign(job_.num_crops * count, request_.recorded ? INFINITY : -FLT_MAX);
    for (size_t i = first; i < first + count; ++i) query_ids_.push_back(groups_[swept_[i]][0]);
    for (int64_t crop = 0; crop < job_.num_crops; ++crop)
      for (size_t i = 0; i < count; ++i) {
        for (const int64_t query : groups_[swept_[first + i]]) {
          const int64_t slot = crop * num_queries_ + query;
          const double cost = -target_scores_[slot];
          if (std::isnan(cost)) continue;
          thresholds_.push_back(
              {slot, static_cast<int64_t>(i), round_down(cost), round_up(cost)});
          for (int64_t earlier = 0; earlier <= crop; ++earlier) {
            float& limit = limits_[earlier * count + i];
            limit = std::max(limit, round_up(cost));
          }
        }
        first_threshold_.push_back(static_cast<int64_t>(thresholds_.size()));
      }
    job_.query_ids = query_ids_.data();
    job_.num_queries = static_cast<int64_t>(count);
    job_.limits = limits_.data();
    job_.thresholds = thresholds_.data();
    job_.first_threshold = first_threshold_.data();
    find_errors();
  }

  void sweep(const Pass& pass) {
    share(pass.turn);
    prepare_pass(pass.first, pass.count);
    const int64_t rows = job_.num_crops * job_.num_queries;
    num_pairs_ += (is_int8() ? first_threshold_[rows] : rows) * job_.num_candidates;
    sweep_pass();
    for (const auto& owned : workers_) resolve(job_, owned->worker);
  }

  static void resolve(const SweepJob& job, Worker& worker) {
    static_cast<Ranking*>(job.owner)->resolve_band(*static_cast<OwnedWorker*>(worker.owner));
  }

  // Decides the pairs of the band, and empties it; a query's own target never counts.
  void resolve_band(OwnedWorker& owned) const {
    const FloatMode mode(FloatMode::kIeee);  // a sweep calls this in its own mode
    Worker& worker = owned.worker;
    Pair* const begin = worker.band;
    Pair* end = std::remove_if(begin, begin + worker.band_size, [&](const Pair& pair) {
      return pair.candidate == request_.targets[pair.query % num_queries_];
    });
    worker.band_size = 0;
    if (is_int8()) end = decide(begin, end, owned);
    worker.pairs.canonical += end - begin;
    for (int64_t crop = 0; crop < job_.num_crops && begin < end; ++crop) {
      std::vector<Pair> pairs;
      for (const Pair* pair = begin; pair < end; ++pair)
        if (pair->query / num_queries_ == crop)
          pairs.push_back({pair->query % num_queries_, pair->candidate});
      const std::vector<double> scores = canonical(crops_[crop].end, pairs, worker);
      for (size_t i = 0; i < pairs.size(); ++i)
        compare(scores[i], crop * num_queries_ + pairs[i].query, worker);
    }
  }

  // Counts pairs that words leave open and whose products in float32 decide, and returns the end
  // of the others. No branch depends on a product, which no machine foresees.
  Pair* decide(Pair* begin, Pair* end, OwnedWorker& owned) const {
    constexpr int64_t most = Int8Pass::kPairsAtOnce;
    double lows[most], highs[most];
    Pair* open = begin;
    for (Pair* first = begin; first < end; first += most) {
      const int64_t count = std::min(most, end - first);
      int8_->find_costs(first, count, owned.int8.data, lows, highs);
      for (int64_t i = 0; i < count; ++i) {
        const Pair pair = first[i];
        const double bias = job_.bias_exact ? job_.bias_exact[pair.candidate] : 0.0;
        const double target = target_scores_[pair.query];
        const bool beats = bias - highs[i] > target, loses = bias - lows[i] < target;
        owned.worker.greater[pair.query] += beats;  // rounding keeps the order
        *open = pair;
        open += !(beats | loses);
      }
    }
    return open;
  }

  void compare(double score, int64_t slot, Worker& worker) const {
    worker.greater[slot] += score > target_scores_[slot];
    worker.equal[slot] += score == target_scores_[slot];
  }

  // Counts known answers. Equal queries with the same known answers share their scores.
  void exclude() {
    for (int i = 0; i < plan_.threads; ++i) count_into(i, 2);
    const int64_t groups = static_cast<int64_t>(groups_.size());
    parallel(groups * job_.num_crops, [&](OwnedWorker& owned, int64_t task) {
      exclude_group(groups_[task % groups], task / groups, owned.worker);
    });
  }

  void exclude_group(const std::vector<int64_t>& group, int64_t crop, Worker& worker) const {
    std::vector<int64_t> scored;
    std::vector<double> scores;
    for (const int64_t query : group) {
      const std::vector<int64_t> ids = excluded_ids(query);
      const int64_t slot = crop * num_queries_ + query;
      if (std::isnan(target_scores_[slot])) {
        for (const int64_t id : ids) worker.greater[slot] += id != request_.targets[query];
        continue;
      }
      if (ids != scored) {
        scored = ids;
        std::vector<Pair> pairs;
        for (const int64_t id : ids) pairs.push_back({query, id});
        scores = canonical(crops_[crop].end, pairs, worker);
      }
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] != request_.targets[query]) compare(scores[i], slot, worker);
    }
  }

  // Returns the known answers of a query that are candidates, each once.
  std::vector<int64_t> excluded_ids(int64_t query) const {
    std::vector<int64_t> ids = sorted_known(request_.known, query), common;
    if (lists_.indptr) {
      std::copy_if(lists_.indices + lists_.indptr[query], lists_.indices + lists_.indptr[query + 1],
                   std::back_inserter(common),
                   [&](int64_t id) { return std::binary_search(ids.begin(), ids.end(), id); });
      return common;
    }
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(common),
                 [&](int64_t id) { return is_candidate(id); });
    return common;
  }

  // Counts the candidates of a query, but for the target.
  int64_t count_others(int64_t query) const {
    const int64_t target = request_.targets[query];
    if (!lists_.indptr) return job_.num_candidates - is_candidate(target);
    const int64_t* const begin = lists_.indices + lists_.indptr[query];
    const int64_t* const end = lists_.indices + lists_.indptr[query + 1];
    return end - begin - std::count(begin, end, target);
  }

  void collect() {
    const int64_t rows = num_queries_;
    PairCounts& pairs = *request_.pairs;
    pairs = {num_pairs_, 0, 0, 0};
    for (const auto& owned : workers_) {
      pairs.canonical += owned->worker.pairs.canonical;
      pairs.swept += owned->worker.pairs.swept;
      pairs.left += owned->worker.pairs.left;
    }
    for (int64_t kind = 0; kind < kKinds; ++kind)
      for (int64_t slot = 0; slot < slots_; ++slot) {
        int64_t sum = 0;
        for (const auto& counts : counts_) sum += counts[kind * slots_ + slot];
        if (kind == 0 && std::isnan(target_scores_[slot])) sum = count_others(slot % rows);
        request_.counts[(slot / rows * kKinds + kind) * rows + slot % rows] = sum;
      }
  }

  bool is_candidate(int64_t id) const {
    const int64_t* subset = request_.sorted_candidate_ids;
    if (!job_.has_subset) return id >= 0;
    return std::binary_search(subset, subset + job_.num_candidates, id);
  }

  const RankRequest& request_;
  const int64_t slots_;                       // C * B
  std::vector<double> target_scores_;         // [C][B]
  std::vector<std::vector<int64_t>> counts_;  // of each worker [4][C][B]
  std::vector<std::vector<int64_t>> groups_;  // queries that are equal
  std::vector<int64_t> swept_;                // groups, in sweep order
  std::vector<Pass> passes_;
  std::vector<int64_t> query_ids_, first_threshold_;
  std::vector<Threshold> thresholds_;
  int64_t num_pairs_ = 0;  // pairs of queries, or of targets where int8 serves, and candidates
};

}  // namespace

SweepStatus rank_counts(const Execution& execution, const RankRequest& request) {
  return Ranking(execution, request).run();  // NOLINT(clang-analyzer-core.StackAddressEscape)
}

}  // namespace kgfast
