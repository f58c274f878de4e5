#include "host/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "host/bias.h"
#include "host/byte_pass.h"
#include "host/int8_pass.h"
#include "host/passes.h"

namespace kgfast {
namespace {

constexpr int64_t kSurvivorBytes = 24 << 20;  // of all workers together
constexpr int64_t kChunk = 1 << 16;           // candidates scored at once without a sweep
constexpr int64_t kChunkBytes = 32 << 20;     // of all workers together, where k allows it
constexpr int64_t kQueriesPerTask = 32;       // of the final order

struct OwnedTopkWorker : WorkerMemory {
  OwnedTopkWorker(const PassPlan& plan, const SweepJob& job, int64_t queries, int64_t capacity)
      : WorkerMemory(plan, job), survivors(queries * capacity), counts(queries) {
    lend(worker);
    worker.survivors = survivors.data;
    worker.counts = counts.data();
  }
  Buffer<Survivor> survivors;
  std::vector<int64_t> counts;
  TopkWorker worker{};
};

class Topk {
 public:
  Topk(const Execution& execution, const TopkRequest& request)
      : execution_(execution), isa_(execution.isa), request_(request),
        num_queries_(request.operands.query.count), bias_(request.operands),
        kept_(std::min(request.k, request.operands.num_candidates)) {
    static_cast<SweepJob&>(job_) = begin_sweep(isa_, request.operands);
    bias_.lend(job_);
    crop_.end = job_.num_features = request.num_features;
    job_.crops = &crop_;
    job_.num_crops = 1;
    job_.isa = &isa_;
    job_.k = kept_;
    job_.capacity = kept_ + std::max<int64_t>(kept_, 16);
  }

  SweepStatus run() {
    if (!num_queries_) return status_;
    if (!request_.nan_worst) check_queries();
    if (!is_ok(status_)) return status_;
    const int64_t threads = std::max(execution_.threads, 1);
    const int64_t fit =
        kSurvivorBytes / static_cast<int64_t>(sizeof(Survivor)) / threads / job_.capacity;
    const bool sweeps = fit >= job_.facts.tile_queries && job_.capacity < job_.num_candidates;
    if (sweeps)
      run_passes(fit);
    else
      score_everything();
    return status_;
  }

 private:
  void check_queries() {
    for (int64_t query = 0; query < num_queries_; ++query)
      check_query(job_, query, &status_.bad_query);
  }

  void run_passes(int64_t fit) {
    plan_ = plan_passes(job_, execution_.threads, std::min(fit, kQueriesPerPass));
    bound_ = crop_bound(isa_, job_, 0);
    crop_.rel = round_up(bound_.rel);
    set_norm(job_, bound_);
    status_.interrupted = find_factor_reach(job_, plan_.threads, execution_.interrupted);
    const int64_t queries = std::min(plan_.queries, num_queries_);
    int8_ = std::make_unique<Int8Pass>(execution_, job_, kept_);
    bytes_ = std::make_unique<BytePass>(execution_, job_, kept_);
    plan_.int8_bytes = int8_->worker_bytes(queries);
    for (int i = 0; i < plan_.threads; ++i)
      workers_.push_back(std::make_unique<OwnedTopkWorker>(plan_, job_, queries, job_.capacity));
    for (int64_t first = 0; is_ok(status_) && first < num_queries_;
         first += plan_.queries) {
      prepare_pass(first, std::min(plan_.queries, num_queries_ - first));
      packed_.pack(isa_, job_);
      if (int8_->serves(job_.num_queries))
        sweep_int8();
      else if (bytes_->serves(job_.num_queries))
        sweep_bytes();
      else
        parallel(plan_.panels, [&](OwnedTopkWorker& owned, int64_t panel) {
          isa_.topk->sweep_panel(job_, panel, owned.worker);
        });
      if (is_ok(status_)) finish_pass();
    }
  }

  void sweep_int8() {
    int8_->pack(job_);
    int8_->set_bases(bias_.magnitude());
    parallel(int8_->groups(job_.num_candidates), [&](OwnedTopkWorker& owned, int64_t group) {
      if (!int8_->pays(owned.worker.pairs, job_.num_queries)) return sweep_wide(group, owned);
      int8_->sweep_group(job_, group, owned.int8.data, owned.worker,
                         [&](const Int8Panel& panel) {
                           int8_->tier().keep_panel(int8_->job(), job_, panel, owned.worker);
                         });
    });
  }

  // Panels go to a worker in runs, as it asks for the next one while it sweeps.
  void sweep_bytes() {
    constexpr int64_t most = 16;
    const int64_t run = std::clamp<int64_t>(plan_.panels / (8 * plan_.threads), 1, most);
    bytes_->pack(job_, base_.data());
    parallel(divide_up(plan_.panels, run), [&](OwnedTopkWorker& owned, int64_t task) {
      for (int64_t panel = task * run; panel < std::min((task + 1) * run, plan_.panels); ++panel)
        bytes_->tier().keep_panel(bytes_->job(), job_, panel, owned.worker);
    });
  }

  // A group of candidates in float32.
  void sweep_wide(int64_t group, OwnedTopkWorker& owned) {
    const int64_t panels = int8_->group() / job_.facts.lanes, first = group * panels;
    for (int64_t panel = first; panel < std::min(first + panels, plan_.panels); ++panel)
      isa_.topk->sweep_panel(job_, panel, owned.worker);
  }

  // Runs body(worker, task) for every task, on all threads.
  template <class Body>
  void parallel(int64_t count, Body body) {
    sweep_tasks(execution_, workers_, count, &status_, !request_.nan_worst, body);
  }

  void prepare_pass(int64_t first, int64_t count) {
    rows_.resize(count);
    std::iota(rows_.begin(), rows_.end(), first);
    base_.resize(count);
    slope_.resize(count);
    limits_.assign(count, std::numeric_limits<float>::infinity());
    known_.clear();
    first_known_.assign(1, 0);
    for (int64_t i = 0; i < count; ++i) {
      const AbsoluteError error =
          absolute_error(job_, job_.num_features, bound_, first + i, bias_.magnitude());
      base_[i] = error.base;
      slope_[i] = error.slope;
      const std::vector<int64_t> ids = sorted_known(request_.known, first + i);
      known_.insert(known_.end(), ids.begin(), ids.end());
      first_known_.push_back(static_cast<int64_t>(known_.size()));
    }
    for (const auto& owned : workers_) std::fill(owned->counts.begin(), owned->counts.end(), 0);
    job_.query_ids = rows_.data();
    job_.num_queries = count;
    job_.base = base_.data();
    job_.slope = slope_.data();
    job_.limits = limits_.data();
    job_.known = known_.data();
    job_.first_known = first_known_.data();
  }

  // Canonical scores of what is left, and their order.
  void finish_pass() {
    const int64_t tasks = divide_up(job_.num_queries, kQueriesPerTask);
    parallel(tasks, [&](OwnedTopkWorker& owned, int64_t task) {
      const int64_t first = task * kQueriesPerTask;
      const int64_t last = std::min(first + kQueriesPerTask, job_.num_queries);
      std::vector<Pair> pairs;
      std::vector<int64_t> ends;
      for (int64_t position = first; position < last; ++position) {
        add_finalists(position, pairs);
        ends.push_back(static_cast<int64_t>(pairs.size()));
      }
      std::vector<double> scores(pairs.size());
      isa_.canonical(job_, job_.num_features, pairs.data(), static_cast<int64_t>(pairs.size()),
                     owned.worker.scratch, scores.data());
      std::vector<Scored> scored;
      for (int64_t i = 0, at = 0; i < last - first; ++i) {
        scored.clear();
        for (; at < ends[i]; ++at) scored.push_back({scores[at], pairs[at].candidate});
        write(rows_[first + i], scored);
      }
    });
  }

  // The survivors of all workers that are not worse than k of them.
  void add_finalists(int64_t position, std::vector<Pair>& pairs) const {
    std::vector<Survivor> left;
    for (const auto& owned : workers_) {
      const Survivor* survivors = owned->survivors.data + position * job_.capacity;
      left.insert(left.end(), survivors, survivors + owned->counts[position]);
    }
    float limit = std::numeric_limits<float>::infinity();
    if (static_cast<int64_t>(left.size()) >= kept_) {
      std::nth_element(left.begin(), left.begin() + kept_ - 1, left.end(),
                       [](const Survivor& a, const Survivor& b) { return a.high < b.high; });
      limit = left[kept_ - 1].high;
    }
    for (const Survivor& survivor : left)
      if (!(survivor.low > limit)) pairs.push_back({rows_[position], survivor.candidate});
  }

  // Sorts the candidates of a query and writes the first k.
  void write(int64_t query, std::vector<Scored>& scored) const {
    const int64_t count = std::min<int64_t>(request_.k, scored.size());
    std::partial_sort(scored.begin(), scored.begin() + count, scored.end(), is_better);
    for (int64_t i = 0; i < request_.k; ++i) {
      const int64_t at = query * request_.k + i;
      const double score = i < count ? scored[i].score : -INFINITY;
      request_.ids[at] = i < count ? scored[i].candidate : -1;
      if (job_.query.dtype == DType::f64)
        static_cast<double*>(request_.scores)[at] = score;
      else
        static_cast<float*>(request_.scores)[at] = static_cast<float>(score);
    }
  }

  // For k of the size of the table: canonical scores of every pair, a query at a time.
  void score_everything() {
    const int64_t bytes = (kept_ + 2 * kChunk) * static_cast<int64_t>(sizeof(Scored));
    const int threads =
        threads_for(std::min(kChunkBytes / bytes, num_queries_), execution_.threads);
    status_.interrupted = kgfast::parallel(threads, num_queries_, execution_.interrupted,
                                           [&](int, int64_t query) { score_query(query); });
  }

  void score_query(int64_t query) {
    const std::vector<int64_t> known = sorted_known(request_.known, query);
    std::vector<Scored> best;
    std::vector<Pair> pairs;
    std::vector<double> scores, scratch(kCanonicalScratch);
    for (int64_t first = 0; first < job_.num_candidates; first += kChunk) {
      pairs.clear();
      for (int64_t i = first; i < std::min(first + kChunk, job_.num_candidates); ++i) {
        const int64_t candidate = job_.candidate_ids ? job_.candidate_ids[i] : i;
        if (query == 0 && !request_.nan_worst)
          check_candidate(job_, candidate, &status_.bad_candidate, &status_.bad_factor);
        if (!std::binary_search(known.begin(), known.end(), candidate))
          pairs.push_back({query, candidate});
      }
      scores.resize(pairs.size());
      isa_.canonical(job_, job_.num_features, pairs.data(), static_cast<int64_t>(pairs.size()),
                     scratch.data(), scores.data());
      for (size_t i = 0; i < pairs.size(); ++i) best.push_back({scores[i], pairs[i].candidate});
      if (static_cast<int64_t>(best.size()) <= kept_) continue;
      std::nth_element(best.begin(), best.begin() + kept_ - 1, best.end(), is_better);
      best.resize(kept_);
    }
    write(query, best);
  }

  const Execution& execution_;
  const Isa& isa_;
  const TopkRequest& request_;
  const int64_t num_queries_;
  const Bias bias_;
  TopkJob job_{};
  Crop crop_{};
  const int64_t kept_;  // k, or all candidates
  PassPlan plan_{};
  ErrorBound bound_{};
  std::vector<int64_t> rows_, known_, first_known_;
  std::vector<float> base_, slope_, limits_;
  PackedQueries packed_;
  std::unique_ptr<Int8Pass> int8_;
  std::unique_ptr<BytePass> bytes_;
  std::vector<std::unique_ptr<OwnedTopkWorker>> workers_;
  SweepStatus status_;
};

}  // namespace

SweepStatus topk(const Execution& execution, const TopkRequest& request) {
  return Topk(execution, request).run();
}

}  // namespace kgfast
