// The half-precision sweep takes a few evenly spaced panels first. They show what each tile costs
// in either sweep, as the share of open pairs differs by a factor of thirty between queries. The
// choice does not depend on threads, and no rank depends on the choice.
#include "host/half_passes.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace kgfast {
namespace {

constexpr int64_t kHalfPanelSize = 1 << 19;  // halves of a panel, to stay in the second-level cache
constexpr int64_t kHalfMinPanels = 32;   // with fewer, the sample is too much of the work
constexpr int64_t kHalfMinQueries = 32;  // with fewer, packing is too much
// Cost of packing a panel, in queries that the float32 sweep compares with that panel.
constexpr double kPackFloats = 15.0, kPackHalves = 18.0;

// Halves of one panel.
int64_t half_panel_size(const ScoreFacts& facts, int64_t features) {
  return padded_to_chains(features) * facts.planes * kHalfLanes;
}

// Returns the largest finite magnitude of a row; 0 where no number is finite.
float largest_of(const SweepJob& job, const View& view, int planes, int64_t row) {
  float run[256], largest = 0.0f;
  for (int plane = 0; plane < planes; ++plane)
    for (int64_t k = 0; k < job.num_features; k += 256) {
      const int64_t width = std::min<int64_t>(256, job.num_features - k);
      load_floats(view, row, plane, k, width, run);
      for (int64_t i = 0; i < width; ++i)
        if (std::fabs(run[i]) <= FLT_MAX) largest = std::max(largest, std::fabs(run[i]));
    }
  return largest;
}

// Returns a power of two that keeps nine rows of ten, and nine queries of ten where there are any,
// a factor of four below the sweep's limit.
float half_scale(const SweepJob& job, float limit) {
  constexpr int64_t most = 128;
  const auto typical = [&](const View& view, int64_t count, auto row_of) {
    const int64_t size = std::min(most, count);
    if (!size) return 0.0f;
    std::vector<float> largest(size);
    for (int64_t i = 0; i < size; ++i)
      largest[i] = largest_of(job, view, job.facts.planes, row_of(i * count / size));
    std::nth_element(largest.begin(), largest.begin() + size * 9 / 10, largest.end());
    return largest[size * 9 / 10];
  };
  const float row = typical(job.rows.view, job.num_candidates, [&](int64_t i) {
    return job.candidate_ids ? job.candidate_ids[i] : i;
  });
  const float query =
      typical(job.query, job.num_queries, [&](int64_t i) { return job.query_ids[i]; });
  const float size = std::max(row, query);
  if (!(size > 0.0f)) return 1.0f;
  const int exponent = static_cast<int>(std::floor(std::log2(0.25 * limit / size)));
  return std::ldexp(1.0f, std::clamp(exponent, -60, 60));
}

}  // namespace

// Memory of a worker, beside the float32 sweep's.
struct HalfMemory {
  HalfMemory(const Isa& isa, const SweepJob& job, int64_t tiles)
      : values(half_panel_size(job.facts, job.num_features)),
        errors(kHalfLanes), slack(kHalfLanes), costs(tiles), serves(tiles), is_served(tiles),
        gather(job) {
    worker.room = {values.data, errors.data};
    worker.slack = slack.data;
    gather.lend(isa, worker);
  }
  Buffer<uint16_t> values;
  Buffer<float> errors, slack;
  std::vector<TileCost> costs;
  std::vector<uint8_t> serves, is_served;  // tiles of the present panel, for HalfJob and SweepJob
  GatherMemory gather;
  HalfWorker worker{};
};

bool HalfPasses::can_serve(const Execution& execution, const SweepJob& job) {
  const HalfTier* tier = execution.may_use(Tier::fp16) ? tiers_of(execution.isa).fp16 : nullptr;
  const bool is_wide = job.rows.view.dtype == DType::f64 || job.query.dtype == DType::f64;
  const int64_t panels = divide_up(job.num_candidates, kHalfLanes);
  return tier && tier->facts(job.score).limit > 0.0f && job.num_crops == 1 && !is_wide &&
         half_panel_size(job.facts, job.num_features) <= kHalfPanelSize &&
         panels >= (execution.may_use(Tier::forced) ? 1 : kHalfMinPanels);
}

HalfPasses::HalfPasses(const Execution& execution, const SweepJob& job, const PassPlan& plan)
    : isa_(execution.isa), tier_(*tiers_of(execution.isa).fp16),
      facts_(tier_.facts(job.score)), is_forced_(execution.may_use(Tier::forced)),
      panels_(divide_up(job.num_candidates, kHalfLanes)),
      samples_(sample_panels(panels_)),
      bound_(half_bound(job.facts, job.num_features)) {
  for (int i = 0; i < plan.threads; ++i)
    memory_.push_back(std::make_unique<HalfMemory>(isa_, job, plan.tiles));
}

HalfPasses::~HalfPasses() = default;

bool HalfPasses::begin(const SweepJob& job) {
  if (!is_forced_ && job.num_queries < kHalfMinQueries) return false;
  const int64_t tiles = divide_up(job.num_queries, kHalfQueries);
  const int64_t features = padded_to_chains(job.num_features);
  job_ = {};
  job_.sweep = &job;
  job_.scale = half_scale(job, facts_.limit);
  job_.unscale = 1.0f / job_.scale;
  job_.rel = round_up(bound_.rel);
  job_.features = features;
  const int64_t pairs = tiles * kHalfQueries * features * job.facts.planes;
  if (!packed_ || pairs > packed_size_) packed_ = std::make_unique<Buffer<uint32_t>>(pairs);
  packed_size_ = std::max(packed_size_, pairs);
  query_errors_.assign(job.num_queries, 0.0f);
  tier_.pack_queries(job, job_.scale, packed_->data, query_errors_.data());
  const double absolute = bound_.absolute / job_.scale;
  for (float& error : query_errors_)
    error = round_up(((1.0 + bound_.rel) * error + absolute) * (1.0 + 0x1p-21));
  find_reaches(job);
  job_.packed_queries = packed_->data;
  job_.query_errors = query_errors_.data();
  job_.reaches = reaches_.data();
  serves_.assign(tiles, 1);
  for (const auto& memory : memory_)
    std::fill(memory->costs.begin(), memory->costs.end(), TileCost{});
  return true;
}

bool HalfPasses::is_sample(int64_t panel) const {
  return std::binary_search(samples_.begin(), samples_.end(), panel);
}

void HalfPasses::sweep_sample(int64_t sample, int worker, const uint8_t* done, Worker& wide) {
  HalfMemory& memory = *memory_[worker];
  memory.worker.costs = memory.costs.data();
  sweep_halves(samples_[sample], memory, done, wide);
  memory.worker.costs = nullptr;
}

void HalfPasses::sweep(int64_t panel, int worker, const uint8_t* done, Worker& wide) {
  HalfMemory& memory = *memory_[worker];
  if (any_half_) sweep_halves(panel, memory, done, wide);
  if (!any_float_) return;
  SweepJob rest = *job_.sweep;
  for (size_t tile = 0; tile < serves_.size(); ++tile)
    memory.is_served[tile] = serves_[tile] || (done && done[tile]);
  rest.is_served = memory.is_served.data();
  sweep_floats(isa_, rest, panel, wide);
}

void HalfPasses::choose(const SweepJob& job) {
  double halves = 0.0, floats = 0.0, either = 0.0;
  for (size_t tile = 0; tile < serves_.size(); ++tile) {
    TileCost cost{};
    for (const auto& memory : memory_) {
      cost.pairs += memory->costs[tile].pairs;
      cost.terms += memory->costs[tile].terms;
      cost.gathered += memory->costs[tile].gathered;
      cost.float_terms += memory->costs[tile].float_terms;
    }
    const HalfCosts& costs = facts_.costs;
    const double features = static_cast<double>(job.num_features);
    const double half = costs.term * cost.terms + costs.pair * cost.pairs +
                        (costs.gathered_term * features + costs.gathered_pair) * cost.gathered;
    const double wide = static_cast<double>(cost.float_terms);
    serves_[tile] = half < wide || cost.pairs == 0;  // without pairs, its cost is unknown
    halves += half, floats += wide, either += std::min(half, wide);
  }
  const double query = static_cast<double>(kHalfLanes) * job.num_features * samples_.size();
  halves += kPackHalves * query;
  floats += kPackFloats * query;
  either += (kPackHalves + kPackFloats) * query;
  if (is_forced_ || halves <= std::min(floats, either))
    std::fill(serves_.begin(), serves_.end(), 1);
  else if (floats <= either)
    std::fill(serves_.begin(), serves_.end(), 0);
  any_half_ = std::count(serves_.begin(), serves_.end(), 1) > 0;
  any_float_ = std::count(serves_.begin(), serves_.end(), 0) > 0;
}

TierPairs HalfPasses::pairs() const {
  TierPairs sum{};
  for (const auto& memory : memory_) {
    sum.swept += memory->worker.pairs.swept;
    sum.gathered += memory->worker.pairs.gathered;
    sum.canonical += memory->worker.pairs.canonical;
  }
  return sum;
}

void HalfPasses::values(int64_t panel, Worker& wide, float* out, double* errors) {
  HalfWorker& worker = memory_[0]->worker;
  find_panel(panel, worker, wide);
  tier_.sweep_values(job_, worker, out);
  for (int64_t query = 0; query < job_.sweep->num_queries; ++query)
    for (int lane = 0; lane < kHalfLanes; ++lane)
      errors[query * kHalfLanes + lane] =
          static_cast<double>(query_errors_[query]) + worker.slack[lane];
}

void HalfPasses::sweep_halves(int64_t panel, HalfMemory& memory, const uint8_t* done,
                              Worker& wide) {
  HalfJob job = job_;
  bool any = false;
  for (size_t tile = 0; tile < serves_.size(); ++tile)
    any |= memory.serves[tile] = serves_[tile] && !(done && done[tile]);
  if (!any) return;
  job.serves = memory.serves.data();
  memory.worker.wide = &wide;
  find_panel(panel, memory.worker, wide);
  tier_.sweep_panel(job, panel, memory.worker);
}

void HalfPasses::find_panel(int64_t panel, HalfWorker& half, Worker& wide) {
  half.values = half.room.values;
  half.errors = half.room.errors;
  tier_.pack_panel(*job_.sweep, job_.scale, panel, half.room, wide);
}

void HalfPasses::find_reaches(const SweepJob& job) {
  reaches_.resize(job.num_queries);
  for (int64_t i = 0; i < job.num_queries; ++i)
    reaches_[i] = farthest_reach(job, i, job_.rel, query_errors_[i]);
}

}  // namespace kgfast
