#include "host/passes.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace kgfast {

PassPlan plan_passes(SweepJob& job, int threads, int64_t max_queries) {
  const int64_t lanes = job.facts.lanes, tile = job.facts.tile_queries;
  PassPlan plan{};
  plan.panels = divide_up(job.num_candidates, lanes);
  plan.panel_floats = job.num_features * job.facts.planes * lanes;
  const int64_t panel_bytes = plan.panel_floats * int64_t{sizeof(float)};
  const int64_t fit = kScratchBytes / std::max<int64_t>(1, panel_bytes);
  plan.threads = threads_for(std::min(plan.panels, fit), threads);
  const int64_t row_bytes = job.num_features * job.facts.query_planes * int64_t{sizeof(float)};
  const int64_t queries =
      std::min(kPackedQueryBytes / std::max<int64_t>(1, row_bytes), max_queries);
  plan.queries = std::max<int64_t>(tile, queries / tile * tile);
  job.angle_stride = (job.num_features + 127) / 64 * 64;
  return plan;
}

SweepJob begin_sweep(const Isa& isa, const Operands& operands) {
  SweepJob job{};
  static_cast<Operands&>(job) = operands;
  job.facts = isa.facts(operands.score);
  return job;
}

ErrorBound crop_bound(const SweepJob& job, int64_t crop, double sqrt_error) {
  const bool rounded = job.is_rounded();
  const int64_t features = job.crops[crop].end;
  return error_bound(job.facts, features, divide_up(features, 64), job.term_ulps,
                     sqrt_error, rounded);
}

void set_norm(SweepJob& job, const ErrorBound& bound) {
  job.norm = bound.norm;
  const double terms = static_cast<double>(job.num_features) * job.facts.planes;
  job.norm_inflation = round_up(1.0 + (terms + 16.0) * 0x1p-22);
  job.norm_floor = round_up(terms * 0x1p-124);
}

namespace {

bool has_nonfinite(const SweepJob& job, const View& view, int planes, int64_t row) {
  float run[256];
  bool bad = false;
  for (int plane = 0; plane < planes; ++plane)
    for (int64_t k = 0; k < job.num_features; k += 256)
      bad |= load_floats(view, row, plane, k, std::min<int64_t>(256, job.num_features - k), run);
  return bad;
}

}  // namespace

void check_query(const SweepJob& job, int64_t query, int64_t* bad) {
  if (query < *bad && has_nonfinite(job, job.query, job.facts.query_planes, query)) *bad = query;
}

void check_candidate(const SweepJob& job, int64_t row, int64_t* bad, int64_t* bad_factor) {
  if (row < *bad && has_nonfinite(job, job.rows.view, job.rows.planes, row)) *bad = row;
  const View& factor = job.rows.factor;
  if (factor.data && row < *bad_factor && has_nonfinite(job, factor, 1, row)) *bad_factor = row;
}

double query_norm(const SweepJob& job, int64_t features, Norm norm, int64_t query) {
  const bool of_magnitudes = norm == Norm::magnitudes;
  double sum = 0.0;
  read_query(job, features, query, [&](int, int64_t, int64_t width, const double* run) {
    for (int64_t i = 0; i < width; ++i) sum += of_magnitudes ? std::fabs(run[i]) : run[i] * run[i];
  });
  // Squares of float64 values may underflow; the floor is far below anything that matters.
  return (of_magnitudes ? sum : std::sqrt(sum)) * (1.0 + 1e-6) + 0x1p-500;
}

namespace {

// Sums over the features of an rscf query, for its error (docs/explanation/exactness.md).
struct RscfSums {
  double query = 0.0, shift = 0.0;  // norms of the query and of its shifts
  double largest = 0.0, others = 0.0;
  double base = 0.0, apart = 0.0;  // largest shared |a|, and largest difference from it
  double left = 0.0, left_squares = 0.0;  // of what a shared turn leaves, over |b - 1|^n
  bool flushes = false;
};

RscfSums sums_of(const SweepJob& job, int64_t features, int64_t query) {
  const bool has_factor = job.facts.has_factor, is_complex = job.rows.planes == 2;
  const bool squares = job.facts.terms == Terms::squares;
  RscfSums sums;
  for (int64_t k = 0; k < features; k += 64) {
    double run[kMaxPlanes][64];  // q, then w, then a
    const int64_t width = std::min<int64_t>(64, features - k);
    for (int plane = 0; plane < job.facts.query_planes; ++plane)
      load_doubles(job.query, query, plane, k, width, run[plane]);
    for (int64_t i = 0; i < width; ++i) {
      const double re = run[0][i], im = is_complex ? run[1][i] : 0.0;
      const double q = std::sqrt(re * re + im * im);
      const double a = has_factor ? std::fabs(run[job.facts.query_planes - 1][i]) : 0.0;
      sums.query += squares ? q * q : q;
      sums.shift += squares ? a * a : is_complex ? q * a : a;
      sums.largest = std::max(sums.largest, a);
      sums.others += a + job.factor_largest;
      for (int plane = job.rows.planes; plane < 2 * job.rows.planes; ++plane) {
        const double w = std::fabs(run[plane][i]);
        sums.flushes |= 0.0 < w && w < 0x1p-125;
        sums.others += w;
      }
      if (!job.shared_terms) continue;
      const double base = job.shared[2 * job.num_features + k + i];
      const double apart = std::fabs(run[4][i] - base);
      const double left = q * apart * apart * (job.shared_terms == 1 ? 0.5 : apart / 6.0);
      sums.base = std::max(sums.base, std::fabs(base));
      sums.apart = std::max(sums.apart, apart);
      sums.left += left;
      sums.left_squares += left * left;
    }
  }
  if (squares) sums.query = std::sqrt(sums.query), sums.shift = std::sqrt(sums.shift);
  return sums;
}

// Returns the error that a query of an rscf score contributes, and the loss of flushed entries. The
// error is infinite where a phase may be too large for a sine, or a scale is so small that it is
// flushed.
double rscf_error(const SweepJob& job, const ErrorBound& bound, const RscfSums& sums) {
  const bool is_complex = job.rows.planes == 2;
  if (sums.flushes || (is_complex && !(sums.largest * (job.factor_largest + 1.0) <= 0x1p20)))
    return INFINITY;
  const double moved = job.shared_terms ? bound.per_shared * sums.query
                                  : bound.per_query * sums.query +
                                        bound.per_shift * sums.shift * job.factor_reach;
  return (moved + 0x1p-125 * sums.others) * (1.0 + 1e-6);
}

}  // namespace

bool can_share(const SweepJob& job, int64_t query) {
  constexpr double most_reach = 4.0, most_angle = 3.2, most_apart = 1.0;
  constexpr double most_left = 0x1p-9;  // few pairs stay open
  const double reach = job.factor_reach;
  const bool is_rounded = job.is_rounded() || job.rows.factor.dtype == DType::f64;
  if (is_rounded || !(reach <= most_reach)) return false;
  const RscfSums sums = sums_of(job, job.num_features, query);
  const bool is_near = job.shared_terms == 1;
  const double left = sums.left * reach * reach * (is_near ? 1.0 : reach);
  return sums.base * reach <= most_angle && sums.apart * reach <= most_apart &&
         left <= most_left * sums.query;
}

AbsoluteError absolute_error(const SweepJob& job, int64_t features, const ErrorBound& bound,
                             int64_t query, double magnitude) {
  constexpr double u = 0x1p-24;
  double constant = bound.absolute + 4.0 * u * magnitude + 0x1p-120, per_norm = 0.0;
  if (magnitude > kMostBias) constant = INFINITY;
  if (job.facts.is_rscf) {
    const RscfSums sums = sums_of(job, features, query);
    constant += rscf_error(job, bound, sums);
    per_norm = std::sqrt(sums.left_squares) * (1.0 + bound.rel) * (1.0 + 1e-6);
  } else if (bound.norm != Norm::none) {
    const double norm = query_norm(job, features, bound.norm, query);
    constant += bound.per_query * norm;
    per_norm = bound.per_pair * norm + bound.per_norm;
  }
  const double up = (1.0 + 8.0 * u) / (1.0 - bound.rel);  // as in relative_error
  return {round_up(constant * up), round_up(per_norm * up)};
}

bool find_factor_reach(SweepJob& job, int threads, const std::function<bool()>& interrupted) {
  constexpr int64_t rows_per_task = 256;
  const View& factor = job.rows.factor;
  job.factor_reach = job.factor_largest = 0.0;
  if (!factor.data) return false;
  const int64_t tasks = divide_up(job.num_candidates, rows_per_task);
  const float origin = job.facts.factor_origin;
  std::vector<float> reach(tasks, 0.0f), largest(tasks, 0.0f);
  const auto find = [&](int, int64_t first, int64_t last) {
    float run[256];
    uint32_t most = 0, farthest = 0;  // magnitudes' bits are ordered as the magnitudes
    for (int64_t i = first; i < last; ++i)
      for (int64_t k = 0; k < job.num_features; k += 256) {
        const int64_t width = std::min<int64_t>(256, job.num_features - k);
        load_floats(factor, candidate_of(job, i), 0, k, width, run);
        for (int64_t j = 0; j < width; ++j) {
          const uint32_t size = bit_cast<uint32_t>(run[j]) & 0x7FFFFFFF;
          const uint32_t distance = bit_cast<uint32_t>(run[j] - origin) & 0x7FFFFFFF;
          most = std::max(most, size < 0x7F800000 ? size : 0);
          farthest = std::max(farthest, size < 0x7F800000 ? distance : 0);
        }
      }
    largest[first / rows_per_task] = bit_cast<float>(most);
    reach[first / rows_per_task] = bit_cast<float>(farthest);
  };
  const bool stopped =
      parallel_ranges(threads, job.num_candidates, rows_per_task, interrupted, find);
  for (int64_t task = 0; task < tasks; ++task) {
    job.factor_largest = std::max<double>(job.factor_largest, largest[task]);
    job.factor_reach = std::max<double>(job.factor_reach, reach[task]);
  }
  constexpr double u = 0x1p-24;
  job.factor_largest *= 1.0 + 2.0 * u;
  const bool rounded = factor.dtype == DType::f64;
  job.factor_reach = job.factor_reach * (1.0 + 2.0 * u) + (rounded ? job.factor_largest : 0.0);
  return stopped;
}

std::vector<int64_t> sorted_known(const Known& known, int64_t query) {
  if (!known.indptr) return {};
  std::vector<int64_t> ids(known.indices + known.indptr[query],
                           known.indices + known.indptr[query + 1]);
  if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace kgfast
