// What the consumers that sweep have in common: how the work is cut into passes of queries and
// panels of candidates, the memory of a worker, the tasks of a pool, the facts of a query row.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "bounds.h"
#include "buffer.h"
#include "job.h"
#include "load.h"
#include "pool.h"
#include "tasks.h"

namespace kgfast {
namespace {

constexpr int64_t kPackedQueryBytes = 12 << 20;  // of all queries of one pass
constexpr int64_t kPanelBytes = 1 << 20;         // of one worker, at most
constexpr int64_t kScratchBytes = 24 << 20;      // of all workers together
constexpr int64_t kQueriesPerPass = 4096;

struct PassPlan {
  int threads;
  int64_t panels;
  int64_t queries;       // of one pass, whole tiles
  int64_t panel_floats;  // of one worker
  int64_t total_floats;  // of one worker, for features that come in several blocks
  int64_t tiles;
};

// Sizes, from `threads` wanted and at most `max_queries` a pass; sets job.features_per_block.
inline PassPlan plan_passes(const Isa& isa, SweepJob& job, int64_t num_queries, int threads,
                            int64_t max_queries = kQueriesPerPass) {
  const int64_t lanes = isa.lanes(job.score), tile = isa.tile_queries(job.score);
  PassPlan plan{};
  plan.panels = (job.num_candidates + lanes - 1) / lanes;
  plan.threads =
      static_cast<int>(std::clamp<int64_t>(threads, 1, std::max<int64_t>(plan.panels, 1)));
  const int64_t feature_bytes = job.planes * lanes * sizeof(float);
  const int64_t panel_bytes = std::min(kPanelBytes, kScratchBytes / 2 / plan.threads);
  const int64_t block = std::max<int64_t>(64, panel_bytes / feature_bytes / 64 * 64);
  job.features_per_block = std::min(job.num_features, block);
  const int64_t row_bytes = job.num_features * job.planes * sizeof(float);
  const bool blocked = job.features_per_block < job.num_features;
  int64_t queries = std::min(kPackedQueryBytes / std::max<int64_t>(1, row_bytes), max_queries);
  if (blocked)
    queries = std::min<int64_t>(queries, kScratchBytes / 2 / plan.threads /
                                             (lanes * sizeof(float)));
  plan.queries = std::max<int64_t>(tile, queries / tile * tile);
  const int64_t per_pass = std::min(plan.queries, num_queries + tile);
  plan.panel_floats = job.features_per_block * job.planes * lanes;
  plan.total_floats = blocked ? per_pass * lanes : 0;
  plan.tiles = per_pass / tile + 1;
  return plan;
}

inline bool is_ok(const SweepStatus& status) {
  return !status.interrupted && status.bad_query == INT64_MAX &&
         status.bad_candidate == INT64_MAX;
}

// What every worker of a sweep points into.
struct WorkerMemory {
  explicit WorkerMemory(const PassPlan& plan)
      : panel(plan.panel_floats), totals(plan.total_floats), alive(plan.tiles),
        scratch(kCanonicalScratch) {}
  void lend(Worker& worker) {
    worker.panel = panel.data;
    worker.totals = totals.data;
    worker.alive = alive.data;
    worker.scratch = scratch.data;
    worker.bad_candidate = INT64_MAX;
  }
  Buffer<float> panel, totals;
  Buffer<uint8_t> alive;
  Buffer<double> scratch;
  int64_t bad_query = INT64_MAX;
};

// The packed queries of one pass.
class PackedQueries {
 public:
  // Packs the queries of job.query_ids; the memory is kept for the next pass.
  void pack(const Isa& isa, SweepJob& job) {
    const int64_t tile = isa.tile_queries(job.score);
    const int64_t padded = (job.num_queries + tile - 1) / tile * tile;
    const int64_t floats = padded * job.num_features * job.planes;
    if (!packed_ || floats > floats_) {
      packed_ = std::make_unique<Buffer<float>>(floats);
      floats_ = floats;
    }
    job.packed_queries = packed_->data;
    isa.pack_queries(job, packed_->data);
  }

 private:
  std::unique_ptr<Buffer<float>> packed_;
  int64_t floats_ = 0;
};

// Runs body(worker, task) for every task; true when it was interrupted.
template <class Body>
bool run_tasks(int threads, int64_t count, const std::function<bool()>& interrupted, Body body) {
  Tasks tasks(count, interrupted);
  Pool::run(threads, [&](int worker) {
    for (int64_t task; (task = tasks.next(worker)) >= 0;) body(worker, task);
  });
  return tasks.stopped();
}

// The smallest float that is not below x.
inline float round_up(double x) {
  const float y = static_cast<float>(x);
  return static_cast<double>(y) >= x || std::isnan(y)
             ? y
             : std::nextafter(y, std::numeric_limits<float>::infinity());
}

inline void set_bound(SweepJob& job, const ErrorBound& bound) {
  job.rel = round_up(bound.rel);
  job.norm = bound.norm;
  const double terms = static_cast<double>(job.num_features) * job.planes;
  job.norm_inflation = round_up(1.0 + (terms + 16.0) * 0x1p-22);
  job.norm_floor = round_up(terms * 0x1p-124);
}

inline bool has_nonfinite(const SweepJob& job, const View& view, int64_t row) {
  float run[256];
  bool bad = false;
  for (int plane = 0; plane < job.planes; ++plane)
    for (int64_t k = 0; k < job.num_features; k += 256)
      bad |= load_floats(view, row, plane, k, std::min<int64_t>(256, job.num_features - k), run);
  return bad;
}

// Calls body with runs of a query row as doubles, plane by plane, until it returns false.
template <class Body>
void read_query(const SweepJob& job, int64_t query, Body body) {
  double run[64];
  for (int plane = 0; plane < job.planes; ++plane)
    for (int64_t k = 0; k < job.num_features; k += 64) {
      const int64_t width = std::min<int64_t>(64, job.num_features - k);
      load_doubles(job.query, query, plane, k, width, run);
      if (!body(plane, k, width, run)) return;
    }
}

// An upper bound on the norm that `bound` asks for.
inline double query_norm(const SweepJob& job, const ErrorBound& bound, int64_t query) {
  if (!bound.norm) return 0.0;
  double sum = 0.0;
  read_query(job, query, [&](int, int64_t, int64_t width, const double* run) {
    for (int64_t i = 0; i < width; ++i)
      sum += bound.norm == 1 ? std::fabs(run[i]) : run[i] * run[i];
    return true;
  });
  // Squares of float64 values may underflow; the floor is far below anything that matters.
  return (bound.norm == 1 ? sum : std::sqrt(sum)) * (1.0 + 1e-6) + 0x1p-500;
}

// The absolute error of a query's comparisons with numbers up to `magnitude`:
// base + slope * norm of the candidate.
inline void absolute_error(const SweepJob& job, const ErrorBound& bound, int64_t query,
                           double magnitude, float* base, float* slope) {
  constexpr double u = 0x1p-24;
  const double norm = query_norm(job, bound, query);
  const double constant =
      bound.absolute + bound.per_query * norm + 4.0 * u * magnitude + 0x1p-120;
  const double per_norm = bound.norm ? bound.per_pair * norm + bound.per_norm : 0.0;
  *base = round_up(constant * (1.0 + 8.0 * u));
  *slope = round_up(per_norm * (1.0 + 8.0 * u));
}

// The known answers of a query, ascending, each once.
inline std::vector<int64_t> sorted_known(const int64_t* indptr, const int64_t* indices,
                                         int64_t query) {
  std::vector<int64_t> ids(indices + indptr[query], indices + indptr[query + 1]);
  if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace
}  // namespace kgfast
