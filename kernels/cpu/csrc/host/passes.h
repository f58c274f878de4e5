// Parts that all consumers of a sweep share: passes of queries and panels of candidates, the memory
// of a worker, the tasks of a pool, the facts of a query row.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "host/bounds.h"
#include "host/job.h"
#include "host/load.h"
#include "host/parallel.h"
#include "host/scores.h"

namespace kgfast {

constexpr int64_t kPackedQueryBytes = 12 << 20;  // for all queries of one pass
constexpr int64_t kScratchBytes = 24 << 20;      // for the panels of all workers
constexpr int64_t kQueriesPerPass = 4096;

struct PassPlan {
  int threads;
  int64_t panels;
  int64_t queries;       // queries of one pass, whole tiles
  int64_t panel_floats;  // for one worker
  int64_t int8_bytes;  // for one worker, where the int8 tier may serve
};

// Cuts the work, for limits on the threads and on the queries of a pass.
PassPlan plan_passes(SweepJob& job, int threads, int64_t max_queries = kQueriesPerPass);

// Returns a job of the operands, without crops, queries and bias.
SweepJob begin_sweep(const Isa& isa, const Operands& operands);

inline bool is_ok(const SweepStatus& status) {
  return !status.interrupted && status.bad_query == INT64_MAX &&
         status.bad_candidate == INT64_MAX && status.bad_factor == INT64_MAX;
}

// A worker and the memory that it points into. `kept`: queries with survivors.
struct OwnedWorker {
  OwnedWorker(const PassPlan& plan, const SweepJob& job, int64_t band_size = 0, int64_t kept = 0)
      : panel(plan.panel_floats), angles(job.angle_stride), norms(job.num_crops),
        query(job.facts.query_planes * padded_features(job.num_features)),
        scratch(kCanonicalScratch), int8(plan.int8_bytes), band(band_size),
        survivors(kept * job.capacity), counts(std::max<int64_t>(kept, 1)) {
    worker.room = panel.data;
    worker.panel_angles = angles.data;
    worker.norms = norms.data;
    worker.scratch = scratch.data;
    worker.band = band.data;
    worker.band_capacity = band_size;
    worker.survivors = survivors.data;
    worker.kept = counts.data();
    worker.bad_candidate = worker.bad_factor = INT64_MAX;
    worker.owner = this;
  }
  Buffer<float> panel, angles, norms, query;  // query: one that rows in place are scored with
  Buffer<double> scratch;
  Buffer<char> int8;
  Buffer<Pair> band;
  Buffer<Survivor> survivors;
  std::vector<int64_t> counts;
  int64_t bad_query = INT64_MAX;
  Worker worker{};
};

// The packed queries of one pass.
class PackedQueries {
 public:
  // Packs the queries of job.query_ids; the memory is kept for the next pass.
  void pack(const Execution& execution, SweepJob& job) {
    constexpr int64_t tiles_per_task = 8;
    const int64_t tiles = divide_up(job.num_queries, job.facts.tile_queries);
    const int64_t planes =
        tiles * job.facts.tile_queries * job.num_features * job.facts.query_planes;
    const int64_t floats = planes + tiles * job.angle_stride;
    if (!packed_ || floats > floats_) {
      packed_ = std::make_unique<Buffer<float>>(floats);
      floats_ = floats;
    }
    job.packed_queries = packed_->data;
    job.tile_angles = packed_->data + planes;
    parallel_ranges(execution.threads, tiles, tiles_per_task, never,
                    [&](int, int64_t first, int64_t last) {
                      execution.isa.pack_queries(job, first, last, packed_->data);
                    });
  }

 private:
  std::unique_ptr<Buffer<float>> packed_;
  int64_t floats_ = 0;
};

// Returns the smallest float that is not below x.
inline float round_up(double x) {
  const float y = static_cast<float>(x);
  return static_cast<double>(y) >= x || std::isnan(y)
             ? y
             : std::nextafter(y, std::numeric_limits<float>::infinity());
}

// Returns the largest float that is not above x.
inline float round_down(double x) { return -round_up(-x); }

// Returns the relative part of a bound, of the number found and not of the exact one: from
// |v^ - v| <= rel |v| + abs follows |v^ - v| <= (rel |v^| + abs) / (1 - rel).
inline double relative_error(const ErrorBound& bound) { return bound.rel / (1.0 - bound.rel); }

// Returns the error bound of a crop, with square roots of a relative error.
ErrorBound crop_bound(const SweepJob& job, int64_t crop, double sqrt_error);

// Sets the norms of candidates that the bound needs, for every crop.
void set_norm(SweepJob& job, const ErrorBound& bound);

// Calls body with runs of the first `features` of a query row as doubles, plane by plane.
template <class Body>
void read_query(const SweepJob& job, int64_t features, int64_t query, Body body) {
  double run[64];
  for (int plane = 0; plane < job.facts.query_planes; ++plane)
    for (int64_t k = 0; k < features; k += 64) {
      const int64_t width = std::min<int64_t>(64, features - k);
      load_doubles(job.query, query, plane, k, width, run);
      body(plane, k, width, run);
    }
}

// Notes a row with a number that is not finite, if no lower row was noted.
void check_query(const SweepJob& job, int64_t query, int64_t* bad);

// Returns an upper bound on the norm of a query that `bound` asks for.
double query_norm(const SweepJob& job, int64_t features, Norm norm, int64_t query);

// Returns the absolute error of a query's distances over `features` features, and of a bias up to
// `magnitude`. Beyond kMostBias the error is infinite: a finite distance less a bias may overflow.
constexpr double kMostBias = 0x1p100;  // below half a unit of the largest float32
AbsoluteError absolute_error(const SweepJob& job, int64_t features, const ErrorBound& bound,
                             int64_t query, double magnitude);

// Returns whether a query with the w of job.shared is near enough to its a to share a turn of the
// candidates. NaNs are not.
bool can_share(const SweepJob& job, int64_t query);

// Finds the largest distance of the candidates' factors from their origin, and their largest size,
// rounding to float32 included. Skips numbers that are not finite, which decide nothing. Returns
// true if interrupted.
bool find_factor_reach(SweepJob& job, int threads, const std::function<bool()>& interrupted);

// Returns the known answers of a query, ascending, each once.
std::vector<int64_t> sorted_known(const Known& known, int64_t query);

}  // namespace kgfast
