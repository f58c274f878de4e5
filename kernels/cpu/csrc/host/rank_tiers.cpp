#include "host/rank_tiers.h"

#include <algorithm>
#include <cmath>

#include "host/rank.h"

namespace kgfast {

RankTiers::RankTiers(RankWorkers& workers, const SweepJob& job, PassPlan& plan)
    : workers_(workers), execution_(workers.execution), isa_(execution_.isa), job_(job),
      panels_(plan.panels), int8_(execution_, job) {
  plan.int8_bytes = int8_.worker_bytes(job.query.count);
  for (int i = 0; i < plan.threads; ++i)
    workers_.all.push_back(std::make_unique<OwnedWorker>(plan, job, i));
}

void RankTiers::sweep(const double* target_scores, double magnitude) {
  const bool is_int8 = int8_.serves(job_.num_queries);
  const int64_t rows = job_.num_crops * job_.num_queries;
  pairs_ += (is_int8 ? job_.first_threshold[rows] : rows) * job_.num_candidates;
  if (is_int8)
    sweep_int8(target_scores, magnitude);
  else
    workers_.run(panels_, [&](OwnedWorker& owned, int64_t panel) {
      isa_.sweep_panel(job_, panel, owned.worker);
    });
  for (const auto& owned : workers_.all) isa_.rescore_band(job_, owned->worker);
}

void RankTiers::count_pairs(PairCounts& counts) const {
  counts = {pairs_, 0, {}};
  for (const auto& owned : workers_.all) {
    counts.canonical += owned->worker.canonical;
    counts.int8.swept += owned->worker.pairs.swept;
    counts.int8.gathered += owned->worker.pairs.gathered;
    counts.int8.canonical += owned->worker.pairs.canonical;
  }
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
