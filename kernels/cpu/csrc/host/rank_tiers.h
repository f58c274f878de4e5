// The sweeps of one pass of queries, by tiers and in float32: which sweep takes the pairs, and what
// it leaves to the next. Also the workers of a ranking, with their counts.
#pragma once
#include <memory>
#include <vector>

#include "host/int8_pass.h"
#include "host/passes.h"

namespace kgfast {

constexpr int64_t kBandCapacity = 8192;
constexpr int kKinds = 4;  // kinds of counts: greater, equal, and both of the excluded

// A worker and the memory that it points into.
struct OwnedWorker : WorkerMemory {
  OwnedWorker(const PassPlan& plan, const SweepJob& job, int index)
      : WorkerMemory(plan, job), index(index), slots(job.num_crops * job.query.count),
        band(kBandCapacity), counts(kKinds * slots, 0) {
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
  const int index;      // among the workers
  const int64_t slots;  // C * B
  Buffer<Pair> band;
  std::vector<int64_t> counts;  // [4][C][B]
  Worker worker{};
};

struct RankWorkers {
  RankWorkers(const Execution& execution, bool checks_finite)
      : execution(execution), checks_finite(checks_finite) {}

  // Runs body(worker, task) for every task, on all threads.
  template <class Body>
  void run(int64_t count, Body body) {
    sweep_tasks(execution, all, count, &status, checks_finite, body);
  }
  Worker& first() { return all[0]->worker; }

  const Execution& execution;
  const bool checks_finite;  // numbers that are not finite are errors
  std::vector<std::unique_ptr<OwnedWorker>> all;
  SweepStatus status;
};

class RankTiers {
 public:
  // Makes the workers, too.
  RankTiers(RankWorkers& workers, const SweepJob& job, PassPlan& plan);

  // Sweeps the queries of the job, whose targets have these scores, with biases up to `magnitude`.
  void sweep(const double* target_scores, double magnitude);

  // Writes what became of the pairs of all sweeps.
  void count_pairs(PairCounts& counts) const;

  // Implements sweep_errors of rank.h; the job must hold all queries.
  void errors(float* values, double* bounds);

 private:
  void sweep_int8(const double* target_scores, double magnitude);

  // Sweeps a group of candidates in float32.
  void sweep_wide(int64_t group, OwnedWorker& owned);

  // Implements errors() for the int8 tier.
  void int8_errors(float* values, double* bounds);

  RankWorkers& workers_;
  const Execution& execution_;
  const Isa& isa_;
  const SweepJob& job_;
  const int64_t panels_;  // panels of the float32 sweep
  Int8Pass int8_;
  int64_t pairs_ = 0;  // pairs of queries, or of targets where int8 serves, and candidates
};

}  // namespace kgfast
