#include "indexed.h"

#include <algorithm>

#include "buffer.h"
#include "parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 256;
constexpr int64_t kIdsPerTask = 32;

// Runs body(task, scratch) for every task, on as many threads as have work.
template <class Body>
bool each(const Isa& isa, int planes, int64_t features, int threads, int64_t count,
          const std::function<bool()>& interrupted, Body body) {
  threads = static_cast<int>(std::clamp<int64_t>(count, 1, std::max(threads, 1)));
  const int64_t size = isa.indexed->scratch(planes, features);
  Buffer<float> scratch(threads * size);
  return parallel(threads, count, interrupted, [&](int worker, int64_t task) {
    body(task, scratch.data + worker * size);
  });
}

}  // namespace

bool indexed_scores(const Isa& isa, const IndexedJob& job, int threads,
                    const std::function<bool()>& interrupted) {
  if (!job.per_query) return false;
  const int64_t parts = divide_up(job.per_query, kPairsPerTask);
  return each(isa, job.planes, job.num_features, threads, job.num_queries * parts, interrupted,
              [&](int64_t task, float* scratch) {
                const int64_t first = task % parts * kPairsPerTask;
                isa.indexed->score(job, task / parts, first,
                                   std::min(first + kPairsPerTask, job.per_query), scratch);
              });
}

bool indexed_pull_queries(const Isa& isa, const IndexedPullJob& job, int threads,
                          const std::function<bool()>& interrupted) {
  return each(isa, job.planes, job.num_features, threads, job.num_queries, interrupted,
              [&](int64_t row, float* scratch) { isa.indexed->pull_query(job, row, scratch); });
}

bool indexed_pull_rows(const Isa& isa, const IndexedPullJob& job, int threads,
                       const std::function<bool()>& interrupted) {
  const int64_t tasks = divide_up(job.num_ids, kIdsPerTask);
  return each(isa, job.planes, job.num_features, threads, tasks, interrupted,
              [&](int64_t task, float* scratch) {
                const int64_t end = std::min((task + 1) * kIdsPerTask, job.num_ids);
                for (int64_t id = task * kIdsPerTask; id < end; ++id)
                  isa.indexed->pull_id(job, id, scratch);
              });
}

}  // namespace kgfast
