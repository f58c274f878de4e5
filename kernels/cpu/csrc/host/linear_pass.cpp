// A direction points from the candidates' mean to the query, which makes the mean of the bound
// largest: sum_k |q_k - mean_k|, the query's spread. Queries are sorted by how far the spread is
// past their targets, so that queries of a tile are alike. The tier is tried only where the spread
// is past the targets. A sample of panels then says, tile by tile, whether the product pays. The
// choice does not depend on threads, and no rank depends on the choice.
#include "host/linear_pass.h"

#include "host/machine.h"

#include <algorithm>
#include <cmath>

namespace kgfast {
namespace {

constexpr int64_t kLinearPanelBytes = 1 << 19;  // a panel should stay in the second-level cache
constexpr int64_t kLinearMinPanels = 32;        // with fewer, the sample is too much of the work
constexpr int64_t kLinearRows = 1024;           // rows whose mean stands for that of all candidates
// Cost of packing a panel, in queries that the float32 sweep compares with that panel.
constexpr double kPackLinear = 5.0;
// The share of a tile's terms that a later sweep computes before it abandons the tile.
constexpr double kLaterShare = 0.6;

// Numbers of a row.
int64_t linear_numbers(const SweepJob& job) {
  return job.facts.planes * linear_features(job.num_features);
}

float length(float x, float y) { return std::sqrt(x * x + y * y); }

// Finds the whole numbers a of a feature: a vector in the direction of (x, y), at most `whole`
// long.
void direction(float x, float y, int whole, int* a) {
  const float size = length(x, y), most = y == 0.0f ? whole : whole - 0.4f;
  a[0] = a[1] = 0;
  if (!(size > 0.0f && size < INFINITY)) return;
  a[0] = static_cast<int>(std::lrint(std::clamp(x / size, -1.0f, 1.0f) * most));
  a[1] = static_cast<int>(std::lrint(std::clamp(y / size, -1.0f, 1.0f) * most));
  while (a[0] * a[0] + a[1] * a[1] > whole * whole) {
    int& longer = std::abs(a[0]) > std::abs(a[1]) ? a[0] : a[1];
    longer += longer < 0 ? 1 : -1;
  }
}

}  // namespace

struct LinearMemory {
  LinearMemory(const Isa& isa, const SweepJob& job, int64_t tiles)
      : bytes(linear_row_bytes(linear_numbers(job)) * kLinearLanes),
        row_bytes(linear_row_bytes(linear_numbers(job)) * 16), scales(kLinearLanes),
        errors(kLinearLanes), done(tiles), could(tiles), gather(job) {
    std::fill_n(row_bytes.data, linear_row_bytes(linear_numbers(job)) * 16, uint8_t{0});
    worker.bytes = bytes.data;
    worker.row_bytes = row_bytes.data;
    worker.scales = scales.data;
    worker.errors = errors.data;
    worker.done = done.data();
    worker.could = could.data();
    gather.lend(isa, worker);
  }
  Buffer<uint8_t> bytes, row_bytes;
  Buffer<float> scales, errors;
  std::vector<uint8_t> done;
  std::vector<int64_t> could;
  GatherMemory gather;
  LinearWorker worker{};
};

bool LinearPass::can_serve(const Execution& execution, const SweepJob& job) {
  const bool may_serve = execution.may_use(Tier::linear);
  const LinearTier* tier = may_serve ? tiers_of(execution.isa).linear : nullptr;
  const bool is_wide = job.rows.view.dtype == DType::f64 || job.query.dtype == DType::f64;
  const int64_t panels = divide_up(job.num_candidates, kLinearLanes);
  return tier && tier->costs(job.score).term > 0.0 && job.num_crops == 1 && !is_wide &&
         linear_row_bytes(linear_numbers(job)) * kLinearLanes <= kLinearPanelBytes &&
         panels >= (execution.may_use(Tier::forced) ? 1 : kLinearMinPanels);
}

LinearPass::LinearPass(const Execution& execution, const SweepJob& job, const PassPlan& plan)
    : tier_(*tiers_of(execution.isa).linear), costs_(tier_.costs(job.score)),
      is_forced_(execution.may_use(Tier::forced)), planes_(job.facts.planes),
      panels_(divide_up(job.num_candidates, kLinearLanes)), samples_(sample_panels(panels_)) {
  find_mean(job);
  for (int i = 0; i < plan.threads; ++i)
    memory_.push_back(std::make_unique<LinearMemory>(execution.isa, job, plan.tiles));
}

float LinearPass::spread(const SweepJob& job, int64_t query) const {
  float run[2][kPackBlock], sum = 0.0f;
  for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
    const int64_t width = std::min(kPackBlock, job.num_features - k);
    away_from_mean(job, query, k, width, run);
    for (int64_t i = 0; i < width; ++i) run[0][i] = length(run[0][i], run[1][i]);
    for (int64_t i = 0; i < width; ++i) sum += run[0][i];
  }
  return std::isfinite(sum) ? sum : 0.0f;
}

LinearPass::~LinearPass() = default;

bool LinearPass::begin(const SweepJob& job) {
  const int64_t tiles = divide_up(job.num_queries, kLinearQueries);
  const double pairs = kLinearQueries * kLinearLanes;
  const double features = static_cast<double>(job.num_features);
  job_ = {};
  job_.sweep = &job;
  job_.numbers = linear_numbers(job);
  job_.afford = static_cast<int64_t>(
      pairs * features / 2.0 / (costs_.gathered_term * features + costs_.gathered_pair));
  serves_.assign(tiles, 1);
  offsets_.assign(tiles * kLinearQueries, 0);
  limits_.assign(tiles * kLinearQueries, -INFINITY);
  std::vector<float> reaches(job.num_queries);
  for (int64_t i = 0; i < job.num_queries; ++i) {
    reaches[i] = farthest_reach(job, i, 0x1p-20);
    uint8_t& serves = serves_[i / kLinearQueries];
    serves = serves && (is_forced_ || reaches[i] < spread(job, job.query_ids[i]));
  }
  if (!serves_any()) return false;
  queries_.assign(tiles * kLinearQueries * job_.numbers, 0);
  for (int64_t i = 0; i < job.num_queries; ++i)
    if (serves_[i / kLinearQueries]) pack_query(job, i, reaches[i]);
  job_.queries = queries_.data();
  job_.offsets = offsets_.data();
  job_.limits = limits_.data();
  job_.serves = serves_.data();
  for (const auto& memory : memory_) std::fill(memory->could.begin(), memory->could.end(), 0);
  return true;
}

bool LinearPass::serves_any() const {
  return std::count(serves_.begin(), serves_.end(), 1) > 0;
}

void LinearPass::try_sample(int64_t sample, int worker, Worker& wide) {
  LinearWorker& own = memory_[worker]->worker;
  own.wide = &wide;
  tier_.pack_panel(*job_.sweep, samples_[sample], own);
  tier_.try_panel(job_, samples_[sample], own);
}

bool LinearPass::choose() {
  if (is_forced_) return true;
  const double features = static_cast<double>(job_.sweep->num_features);
  double all = -kPackLinear * features;
  for (size_t tile = 0; tile < serves_.size(); ++tile) {
    if (!serves_[tile]) continue;
    double could = 0.0;
    for (const auto& memory : memory_) could += static_cast<double>(memory->could[tile]);
    const double share = could / static_cast<double>(samples_.size());
    const double gain = share * kLaterShare * features - (costs_.term * features + costs_.pair);
    serves_[tile] = gain > 0.0;
    if (serves_[tile]) all += gain * kLinearQueries;
  }
  if (!(all > 0.0)) std::fill(serves_.begin(), serves_.end(), 0);
  return serves_any();
}

const uint8_t* LinearPass::sweep(int64_t panel, int worker, Worker& wide) {
  LinearWorker& own = memory_[worker]->worker;
  own.wide = &wide;
  tier_.pack_panel(*job_.sweep, panel, own);
  tier_.sweep_panel(job_, panel, own);
  return own.done;
}

LinearPairs LinearPass::pairs() const {
  LinearPairs sum{};
  for (const auto& memory : memory_) {
    const LinearWorker& worker = memory->worker;
    sum.swept += worker.pairs.swept;
    sum.decided += worker.decided;
    sum.gathered += worker.pairs.gathered;
    sum.canonical += worker.pairs.canonical;
  }
  return sum;
}

void LinearPass::lower_bounds(int64_t panel, Worker& wide, double* out) {
  LinearWorker& own = memory_[0]->worker;
  own.wide = &wide;
  tier_.pack_panel(*job_.sweep, panel, own);
  std::vector<float> values(serves_.size() * kLinearQueries * kLinearLanes);
  tier_.panel_values(job_, own, values.data());
  for (int64_t i = 0; i < job_.sweep->num_queries * kLinearLanes; ++i)
    out[i] = starts_[i / kLinearLanes] - static_cast<double>(values[i]);
}

void LinearPass::find_mean(const SweepJob& job) {
  const int64_t features = job.num_features, count = std::min(kLinearRows, job.num_candidates);
  std::vector<double> sums(planes_ * features, 0.0);
  float run[kPackBlock];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * job.num_candidates / count;
    const int64_t row = job.candidate_ids ? job.candidate_ids[at] : at;
    for (int plane = 0; plane < planes_; ++plane)
      for (int64_t k = 0; k < features; k += kPackBlock) {
        const int64_t width = std::min(kPackBlock, features - k);
        if (load_floats(job.rows.view, row, plane, k, width, run)) continue;
        for (int64_t j = 0; j < width; ++j) sums[plane * features + k + j] += run[j];
      }
  }
  for (const double sum : sums)
    mean_.push_back(static_cast<float>(sum / static_cast<double>(std::max<int64_t>(count, 1))));
}

void LinearPass::away_from_mean(const SweepJob& job, int64_t query, int64_t feature, int64_t width,
                    float (*run)[kPackBlock]) const {
  for (int plane = 0; plane < 2; ++plane) {
    std::fill_n(run[plane], width, 0.0f);
    if (plane >= planes_) continue;
    load_floats(job.query, query, plane, feature, width, run[plane]);
    const float* mean = mean_.data() + plane * job.num_features + feature;
    for (int64_t i = 0; i < width; ++i) run[plane][i] -= mean[i];
  }
}

void LinearPass::pack_query(const SweepJob& job, int64_t position, double reach) {
  int8_t* to = queries_.data() + position * job_.numbers;
  const int64_t query = job.query_ids[position], plane = linear_features(job.num_features);
  float run[2][kPackBlock];
  double exact[2][kPackBlock], start = 0.0, size = 0.0;
  int64_t sum = 0;
  bool fits = true;
  for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
    const int64_t width = std::min(kPackBlock, job.num_features - k);
    away_from_mean(job, query, k, width, run);
    for (int p = 0; p < planes_; ++p) load_doubles(job.query, query, p, k, width, exact[p]);
    for (int64_t i = 0; i < width; ++i) {
      int a[2];
      direction(run[0][i], run[1][i], tier_.most, a);
      for (int p = 0; p < planes_; ++p) {
        to[p * plane + k + i] = static_cast<int8_t>(a[p]);
        sum += a[p];
        start += a[p] * exact[p][i];
        size += std::fabs(a[p] * exact[p][i]);
        fits &= std::fabs(exact[p][i]) <= 0x1p100;
      }
    }
  }
  start = (start - size * 0x1p-36) / tier_.most;  // roundings of both sums
  starts_.resize(std::max<size_t>(starts_.size(), position + 1));
  starts_[position] = fits ? start : -double{INFINITY};
  offsets_[position] = static_cast<int32_t>(-128 * sum);
  const double limit = start - reach;
  const double rounding = (std::fabs(start) + std::fabs(reach)) * 0x1p-50;
  limits_[position] = fits ? -round_up(rounding - limit) : -INFINITY;
}

}  // namespace kgfast
