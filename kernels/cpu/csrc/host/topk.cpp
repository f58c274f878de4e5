#include "host/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "host/topk_passes.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 1 << 12;  // survivors of a task of the final order, about

class Topk : TopkPasses {
 public:
  Topk(const Execution& execution, const TopkRequest& request)
      : TopkPasses(execution, request.operands, request.num_features, request.lists,
                   request.known, !request.nan_worst),
        request_(request), kept_(std::min(request.k, request.operands.num_candidates)) {
    job_.question = Question::keep;
    job_.k = kept_;
    job_.capacity = std::min(kept_ + std::max<int64_t>(kept_, 16), job_.num_candidates);
  }

  SweepStatus run() {
    if (is_ok(status_) && num_queries_) run_passes(kept_, 1, 0);
    return status_;
  }

 private:
  float limit(int64_t) const override { return std::numeric_limits<float>::infinity(); }

  // Computes canonical scores of the survivors, and sorts them.
  bool finish_pass() override {
    const int64_t step = std::clamp<int64_t>(kPairsPerTask / (kept_ + 1), 1, 32);
    parallel(divide_up(job_.num_queries, step), [&](OwnedWorker& owned, int64_t task) {
      const int64_t first = task * step, last = std::min(first + step, job_.num_queries);
      std::vector<Pair> pairs;
      std::vector<int64_t> ends;
      for (int64_t position = first; position < last; ++position) {
        add_finalists(position, pairs);
        ends.push_back(static_cast<int64_t>(pairs.size()));
      }
      const std::vector<double> scores = canonical(job_.num_features, pairs, owned.worker);
      std::vector<Scored> scored;
      for (int64_t i = 0, at = 0; i < last - first; ++i) {
        scored.clear();
        for (; at < ends[i]; ++at) scored.push_back({scores[at], pairs[at].candidate});
        write_best(scored, rows_[first + i]);
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
    if (kept_ && static_cast<int64_t>(left.size()) >= kept_) {
      std::nth_element(left.begin(), left.begin() + kept_ - 1, left.end(),
                       [](const Survivor& a, const Survivor& b) { return a.high < b.high; });
      limit = left[kept_ - 1].high;
    }
    for (const Survivor& survivor : left)
      if (!(survivor.low > limit)) pairs.push_back({rows_[position], survivor.candidate});
  }

  // Sorts the candidates of a query, and writes the first k.
  void write_best(std::vector<Scored>& scored, int64_t query) const {
    const int64_t count = std::min(request_.k, static_cast<int64_t>(scored.size()));
    std::partial_sort(scored.begin(), scored.begin() + count, scored.end(), is_better);
    for (int64_t i = 0, at = query * request_.k; i < request_.k; ++i, ++at) {
      const double score = i < count ? scored[i].score : -double{INFINITY};
      request_.ids[at] = i < count ? scored[i].candidate : -1;
      if (job_.query.dtype == DType::f64)
        static_cast<double*>(request_.scores)[at] = score;
      else
        static_cast<float*>(request_.scores)[at] = static_cast<float>(score);
    }
  }

  const TopkRequest& request_;
  const int64_t kept_;  // k, or all candidates
};

}  // namespace

SweepStatus topk(const Execution& execution, const TopkRequest& request) {
  return Topk(execution, request).run();  // NOLINT(clang-analyzer-core.StackAddressEscape): copied
}

}  // namespace kgfast
