#include "host/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "host/topk_passes.h"

namespace kgfast {
namespace {

constexpr int64_t kSurvivorBytes = 24 << 20;  // for all workers together
constexpr int64_t kChunk = 1 << 16;           // candidates scored at once without a sweep
constexpr int64_t kChunkBytes = 32 << 20;     // for all workers together, where k allows it
constexpr int64_t kQueriesPerTask = 32;       // queries of a task of the final order

class Topk : TopkPasses {
 public:
  Topk(const Execution& execution, const TopkRequest& request)
      : TopkPasses(execution, request.operands, request.num_features, request.known,
                   !request.nan_worst),
        request_(request), kept_(std::min(request.k, request.operands.num_candidates)) {
    job_.k = kept_;
    job_.capacity = kept_ + std::max<int64_t>(kept_, 16);
  }

  SweepStatus run() {
    if (!num_queries_) return status_;
    if (checks_finite_) check_queries();
    if (!is_ok(status_)) return status_;
    const int64_t threads = std::max(execution_.threads, 1);
    const int64_t fit =
        kSurvivorBytes / static_cast<int64_t>(sizeof(Survivor)) / threads / job_.capacity;
    const bool sweeps = fit >= job_.facts.tile_queries && job_.capacity < job_.num_candidates;
    if (sweeps)
      run_passes(fit, kept_);
    else
      score_everything();
    return status_;
  }

 private:
  Start start(int64_t) const override { return {std::numeric_limits<float>::infinity(), 0.0}; }

  // Computes canonical scores of the survivors, and sorts them.
  bool finish_pass() override {
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
    return true;
  }

  // Adds the survivors of all workers that are not surely worse than k others.
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
    const int64_t count = std::min(request_.k, static_cast<int64_t>(scored.size()));
    std::partial_sort(scored.begin(), scored.begin() + count, scored.end(), is_better);
    for (int64_t i = 0; i < request_.k; ++i) {
      const int64_t at = query * request_.k + i;
      const double score = i < count ? scored[i].score : -double{INFINITY};
      request_.ids[at] = i < count ? scored[i].candidate : -1;
      if (job_.query.dtype == DType::f64)
        static_cast<double*>(request_.scores)[at] = score;
      else
        static_cast<float*>(request_.scores)[at] = static_cast<float>(score);
    }
  }

  // Scores every pair canonically, a query at a time: for k too large for a sweep.
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
        if (query == 0 && checks_finite_)
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

  const TopkRequest& request_;
  const int64_t kept_;  // k, or all candidates
};

}  // namespace

SweepStatus topk(const Execution& execution, const TopkRequest& request) {
  return Topk(execution, request).run();  // NOLINT(clang-analyzer-core.StackAddressEscape): copied
}

}  // namespace kgfast
