// The workers of a ranking: what each keeps, and work for all of them.
#pragma once
#include <memory>
#include <vector>

#include "host/passes.h"

namespace kgfast {
namespace {

constexpr int64_t kBandCapacity = 8192;
constexpr int kKinds = 4;  // of counts: greater, equal, and both of the excluded

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
  const bool checks_finite;  // whether numbers that are not finite are errors
  std::vector<std::unique_ptr<OwnedWorker>> all;
  SweepStatus status;
};

}  // namespace
}  // namespace kgfast
