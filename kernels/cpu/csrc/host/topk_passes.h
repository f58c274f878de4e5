// Passes of queries whose limits on costs decide which candidates of a sweep survive. A limit of
// the best k falls as the sweep goes; the limit of a threshold stands still.
#pragma once
#include <memory>
#include <numeric>
#include <vector>

#include "host/sweeps.h"

namespace kgfast {

constexpr int64_t kWorkerBytes = 24 << 20;  // of survivors or pairs of all workers together
constexpr int64_t kMostOpen = 4096;  // extra survivors of a query, as bytes leave more open

class TopkPasses : protected Sweeps {
 protected:
  TopkPasses(const Execution& execution, const Operands& operands, int64_t features,
             const Known& lists, const Known& known, bool checks_finite)
      : Sweeps(execution, operands, {features}, lists, checks_finite), of_known_(known) {
    for (int64_t query = 0; checks_finite && query < num_queries_; ++query)
      check_query(job_, query, &status_.bad_query);
  }
  virtual ~TopkPasses() = default;

  virtual float limit(int64_t query) const = 0;  // the first limit on costs

  // Turns what a pass kept into results; false: no later pass is needed.
  virtual bool finish_pass() = 0;

  // `answers`: most answers of a query; 0: unknown. A worker keeps up to `most_pairs` open pairs,
  // of `pair_bytes` bytes each.
  void run_passes(int64_t answers, int64_t pair_bytes, int64_t most_pairs) {
    const int64_t bytes_of_query =
        std::max<int64_t>(job_.capacity * static_cast<int64_t>(sizeof(Survivor)), 1);
    plan(kWorkerBytes / std::max(execution_.threads, 1) / bytes_of_query, answers);
    const int64_t queries = std::min(plan_.queries, num_queries_);
    plan_.threads = static_cast<int>(
        std::clamp<int64_t>(kWorkerBytes / (queries * bytes_of_query), 1, plan_.threads));
    // Bytes decide fewer candidates: more stay open until canonical scores of a few decide.
    if (bytes_->serves(queries)) job_.capacity += std::min(7 * job_.capacity, kMostOpen);
    const int64_t band = std::min(kWorkerBytes / (pair_bytes * plan_.threads), most_pairs);
    for (int i = 0; i < plan_.threads; ++i)
      workers_.push_back(std::make_unique<OwnedWorker>(plan_, job_, band, queries));
    for (int64_t first = 0; is_ok(status_) && first < num_queries_; first += plan_.queries) {
      prepare_pass(first, std::min(plan_.queries, num_queries_ - first));
      sweep_pass();
      if (is_ok(status_) && !finish_pass()) return;
    }
  }

 private:
  void prepare_pass(int64_t first, int64_t count) {
    rows_.resize(count);
    std::iota(rows_.begin(), rows_.end(), first);
    limits_.clear();
    known_.clear();
    first_known_.assign(1, 0);
    for (const int64_t query : rows_) {
      limits_.push_back(limit(query));
      const std::vector<int64_t> ids = sorted_known(of_known_, query);
      known_.insert(known_.end(), ids.begin(), ids.end());
      first_known_.push_back(static_cast<int64_t>(known_.size()));
    }
    for (const auto& owned : workers_) std::fill(owned->counts.begin(), owned->counts.end(), 0);
    job_.query_ids = rows_.data();
    job_.num_queries = count;
    job_.limits = limits_.data();
    job_.known = known_.data();
    job_.first_known = first_known_.data();
    find_errors();
  }

 protected:
  const Known of_known_;
  std::vector<int64_t> rows_;

 private:
  std::vector<int64_t> known_, first_known_;
};

}  // namespace kgfast
