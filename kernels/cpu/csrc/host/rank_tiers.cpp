#include "host/rank_tiers.h"

#include <algorithm>
#include <cmath>

#include "host/rank.h"

namespace kgfast {
namespace {

void write(Tier tier, const LinearPairs& pairs, PairCounts& counts) {
  int row = 1;
  while (static_cast<unsigned>(tier) >> row) ++row;
  const int64_t values[] = {pairs.swept, pairs.decided, pairs.gathered, pairs.canonical};
  std::copy_n(values, 4, counts[row]);
}

// Writes the counts of a tier that gathers all undecided pairs.
void write(Tier tier, const TierPairs& pairs, PairCounts& counts) {
  const int64_t decided = pairs.swept - pairs.gathered;
  write(tier, LinearPairs{pairs.swept, decided, pairs.gathered, pairs.canonical}, counts);
}

}  // namespace

RankTiers::RankTiers(RankWorkers& workers, const SweepJob& job, PassPlan& plan)
    : workers_(workers), execution_(workers.execution), isa_(execution_.isa), job_(job),
      panels_(plan.panels), int8_(execution_, job) {
  plan.int8_bytes = int8_.worker_bytes(job.query.count);
  for (int i = 0; i < plan.threads; ++i)
    workers_.all.push_back(std::make_unique<OwnedWorker>(plan, job, i));
  if (LinearPass::can_serve(execution_, job))
    linear_ = std::make_unique<LinearPass>(execution_, job, plan);
}

void RankTiers::sweep(const double* target_scores, double magnitude) {
  const bool is_int8 = int8_.serves(job_.num_queries);
  const int64_t rows = job_.num_crops * job_.num_queries;
  pairs_ += (is_int8 ? job_.first_threshold[rows] : rows) * job_.num_candidates;
  if (is_int8)
    sweep_int8(target_scores, magnitude);
  else
    sweep_distances();
  for (const auto& owned : workers_.all) isa_.rescore_band(job_, owned->worker);
}

void RankTiers::count_pairs(PairCounts& counts) const {
  TierPairs bytes{};
  int64_t canonical = 0;
  for (const auto& owned : workers_.all) {
    bytes.swept += owned->worker.pairs.swept;
    bytes.gathered += owned->worker.pairs.gathered;
    bytes.canonical += owned->worker.pairs.canonical;
    canonical += owned->worker.canonical;
  }
  const int64_t all[] = {pairs_, pairs_, 0, canonical};
  std::copy_n(all, 4, counts[0]);
  write(Tier::int8, bytes, counts);
  if (linear_) write(Tier::linear, linear_->pairs(), counts);
}

void RankTiers::errors(float* values, double* bounds) {
  if (int8_.serves(job_.num_queries)) return int8_errors(values, bounds);
  const int64_t lanes = job_.facts.lanes, rows = job_.num_crops * job_.query.count;
  Worker& worker = workers_.first();
  std::vector<float> tile(rows * lanes);
  for (int64_t panel = 0; panel < panels_; ++panel) {
    isa_.sweep_values(job_, panel, worker, tile.data());
    for (int64_t row = 0; row < rows; ++row) {
      const Threshold& t = job_.thresholds[row];
      const int64_t crop = row / job_.query.count;
      const float norm = worker.norms[crop];
      for (int64_t n = panel * lanes; n < std::min((panel + 1) * lanes, job_.num_candidates);
           ++n) {
        const float value = tile[row * lanes + n - panel * lanes];
        values[row * job_.num_candidates + n] = value;
        bounds[row * job_.num_candidates + n] =
            job_.crops[crop].rel * std::fabs(static_cast<double>(value)) + t.base +
            t.slope * norm;
      }
    }
  }
}

void RankTiers::lower_bounds(double* bounds) {
  if (!linear_ || !linear_->begin(job_)) return;
  const int64_t queries = job_.query.count, all = job_.num_candidates;
  std::vector<double> tile(queries * kLinearLanes);
  for (int64_t panel = 0; panel < linear_->panels(); ++panel) {
    linear_->lower_bounds(panel, workers_.first(), tile.data());
    const int64_t first = panel * kLinearLanes;
    const int64_t size = std::min<int64_t>(kLinearLanes, all - first);
    for (int64_t query = 0; query < queries; ++query)
      std::copy_n(tile.data() + query * kLinearLanes, size, bounds + query * all + first);
  }
}

void RankTiers::sweep_distances() {
  const bool has_linear = linear_ && linear_->begin(job_) && chooses_linear();
  if (workers_.status.interrupted) return;
  if (has_linear) return sweep_linear();
  workers_.run(panels_, [&](OwnedWorker& owned, int64_t panel) {
    isa_.sweep_panel(job_, panel, owned.worker);
  });
}

bool RankTiers::chooses_linear() {
  workers_.run(linear_->samples(), [&](OwnedWorker& owned, int64_t sample) {
    linear_->try_sample(sample, owned.index, owned.worker);
  });
  return linear_->choose();
}

void RankTiers::sweep_linear() {
  workers_.run(linear_->panels(), [&](OwnedWorker& owned, int64_t panel) {
    SweepJob rest = job_;
    rest.is_served = linear_->sweep(panel, owned.index, owned.worker);
    sweep_floats(isa_, rest, panel, owned.worker);
  });
}

void RankTiers::sweep_int8(const double* target_scores, double magnitude) {
  int8_.pack_ranks(job_);
  int8_.set_targets(target_scores, magnitude);
  workers_.run(int8_.groups(job_.num_candidates), [&](OwnedWorker& owned, int64_t group) {
    if (!int8_.pays(owned.worker, job_.num_queries)) return sweep_wide(group, owned);
    int8_.sweep_group(job_, group, owned.int8.data, owned.worker,
                      [&](const Int8Side& side, const Int8Panel& panel) {
                        side.rows->count_panel(side.job, panel, int8_.scratch(owned.int8.data),
                                               isa_, owned.worker);
                      });
  });
}

void RankTiers::sweep_wide(int64_t group, OwnedWorker& owned) {
  const int64_t panels = int8_.group() / job_.facts.lanes, first = group * panels;
  for (int64_t panel = first; panel < std::min(first + panels, panels_); ++panel)
    isa_.sweep_panel(job_, panel, owned.worker);
}

void RankTiers::int8_errors(float* values, double* bounds) {
  const int64_t queries = job_.query.count, all = job_.num_candidates;
  int8_.pack_ranks(job_);
  int8_.set_bases(0.0);
  std::vector<float> panel_values(queries * kInt8Candidates), panel_bounds(panel_values);
  const auto keep = [&](const Int8Side& side, const Int8Panel& panel) {
    side.rows->panel_values(side.job, panel, panel_values.data(), panel_bounds.data());
    const int64_t first = panel.index * kInt8Candidates;
    for (int64_t query = 0; query < queries; ++query)
      for (int64_t n = 0; n < std::min(kInt8Candidates, all - first); ++n) {
        values[query * all + first + n] = panel_values[query * kInt8Candidates + n];
        bounds[query * all + first + n] = panel_bounds[query * kInt8Candidates + n];
      }
  };
  OwnedWorker& owned = *workers_.all[0];
  for (int64_t group = 0; group < int8_.groups(all); ++group)
    int8_.sweep_group(job_, group, owned.int8.data, owned.worker, keep);
}

}  // namespace kgfast
