#include "host/indexed.h"

#include <algorithm>

#include "host/buffer.h"
#include "host/parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 256;
constexpr int64_t kIdsPerTask = 32;
constexpr int64_t kBlockBytes = 1 << 20;  // of rows that a block of queries is scored with, at most
constexpr int64_t kBlockQueries = 64;
constexpr int64_t kTurnedBytes = 24 << 20;

// Runs body(task, scratch) for every task, on as many threads as have work.
template <class Body>
bool each(int64_t scratch_floats, int threads, int64_t count,
          const std::function<bool()>& interrupted, Body body) {
  threads = static_cast<int>(std::clamp<int64_t>(count, 1, std::max(threads, 1)));
  Buffer<float> scratch(threads * scratch_floats);
  return parallel(threads, count, interrupted, [&](int worker, int64_t task) {
    body(task, scratch.data + worker * scratch_floats);
  });
}

// Turns the queries of a pull once, as each of their rows wants them so.
bool turn_queries(const Isa& isa, IndexedPullJob& job, int64_t floats, float* turned, int threads,
                  const std::function<bool()>& interrupted) {
  job.turned = turned;
  return parallel(threads, job.num_queries, interrupted, [&](int, int64_t row) {
    isa.indexed->turn(job, row, turned + row * floats);
  });
}

}  // namespace

bool indexed_scores(const Isa& isa, const IndexedJob& job, int threads,
                    const std::function<bool()>& interrupted) {
  if (!job.per_query) return false;
  const int64_t parts = divide_up(job.per_query, kPairsPerTask);
  return each(isa.indexed->query_floats(job.score, job.num_features), threads,
              job.num_queries * parts, interrupted, [&](int64_t task, float* scratch) {
                const int64_t first = task % parts * kPairsPerTask;
                isa.indexed->score(job, task / parts, first,
                                   std::min(first + kPairsPerTask, job.per_query), scratch);
              });
}

bool pool_scores(const Isa& isa, const IndexedJob& job, int threads,
                 const std::function<bool()>& interrupted) {
  if (!job.per_query || !job.num_queries) return false;
  const int64_t row_bytes = sizeof(float) * isa.indexed->query_floats(job.score, job.num_features);
  const int64_t step = std::max<int64_t>(kBlockBytes / row_bytes / 4 * 4, 4);
  const int64_t blocks = divide_up(job.per_query, step);
  const int64_t parts = divide_up(job.num_queries, kBlockQueries);
  return each(isa.indexed->block_scratch(job, step), threads, blocks * parts, interrupted,
              [&](int64_t task, float* scratch) {
                const int64_t first = task / parts * step, row = task % parts * kBlockQueries;
                isa.indexed->score_block(job, row, std::min(row + kBlockQueries, job.num_queries),
                                         first, std::min(first + step, job.per_query), scratch);
              });
}

bool indexed_pull_queries(const Isa& isa, const IndexedPullJob& job, int threads,
                          const std::function<bool()>& interrupted) {
  return each(isa.indexed->pull_scratch(job.score, job.num_features), threads, job.num_queries,
              interrupted,
              [&](int64_t row, float* scratch) { isa.indexed->pull_query(job, row, scratch); });
}

bool indexed_pull_rows(const Isa& isa, IndexedPullJob& job, int threads,
                       const std::function<bool()>& interrupted) {
  const int64_t floats = isa.indexed->query_floats(job.score, job.num_features);
  const bool turns = isa.indexed->turns(job.score) &&
                     job.num_queries * floats * int64_t{sizeof(float)} <= kTurnedBytes;
  Buffer<float> turned(turns ? job.num_queries * floats : 0);
  if (turns && turn_queries(isa, job, floats, turned.data, threads, interrupted)) return true;
  const int64_t tasks = divide_up(job.num_ids, kIdsPerTask);
  return each(isa.indexed->pull_scratch(job.score, job.num_features), threads, tasks, interrupted,
              [&](int64_t task, float* scratch) {
                const int64_t end = std::min((task + 1) * kIdsPerTask, job.num_ids);
                for (int64_t id = task * kIdsPerTask; id < end; ++id)
                  isa.indexed->pull_id(job, id, scratch);
              });
}

}  // namespace kgfast
