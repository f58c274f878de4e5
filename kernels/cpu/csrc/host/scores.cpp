#include "host/scores.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "host/passes.h"
#include "host/product.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 256;
constexpr int64_t kRowsBytes = 1 << 20;  // of rows that a block of queries is scored with, at most
constexpr int64_t kBlockQueries = 64;

// Scores all rows by the panels of the sweep.
bool score_panels(const Execution& execution, const ScoresJob& operands) {
  PanelJob job{begin_sweep(execution.isa, operands), operands.out};
  std::vector<Crop> crops;
  for (int64_t i = 0; i < operands.crops.count; ++i)
    crops.push_back({operands.crops.widths[i], 0.0f});
  job.crops = crops.data();
  job.num_crops = operands.crops.count;
  job.num_features = operands.num_features;
  job.bias = operands.bias;
  PassPlan plan = plan_passes(job, execution.threads);
  // A task is a panel, with a part of the queries where panels are few.
  const int64_t tile = job.facts.tile_queries, count = job.query.count;
  const int64_t pieces = divide_up(4 * std::max(execution.threads, 1), plan.panels);
  const int64_t tiles = divide_up(divide_up(std::min(plan.queries, count), pieces), tile);
  const int64_t step = std::max<int64_t>(tiles, 8) * tile;
  const int64_t fit = kScratchBytes / (plan.panel_floats * int64_t{sizeof(float)});
  const int threads = threads_for(std::min(plan.panels * pieces, fit), execution.threads);
  std::vector<std::unique_ptr<OwnedWorker>> workers;
  for (int i = 0; i < threads; ++i) workers.push_back(std::make_unique<OwnedWorker>(plan, job));
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  PackedQueries packed;
  for (int64_t pass = 0; pass < count; pass += plan.queries) {
    job.query_ids = ids.data() + pass;
    job.num_queries = std::min(plan.queries, count - pass);
    packed.pack(execution, job);
    const int64_t parts = divide_up(job.num_queries, step);
    const auto score = [&](int worker, int64_t task) {
      PanelJob some = job;
      const int64_t first = task % parts * step;
      some.query_ids += first;
      some.packed_queries += first * job.num_features * job.facts.query_planes;
      some.num_queries = std::min(step, job.num_queries - first);
      execution.isa.scores->panel(some, task / parts, workers[worker]->worker);
    };
    if (parallel(threads, plan.panels * parts, execution.interrupted, score)) return true;
  }
  return false;
}

// Scores each query with the rows that it names; or with all rows, for an rscf score, which has no
// panels: a task's rows stay in the cache for some queries.
bool score_in_place(const Execution& execution, const ScoresJob& job) {
  const ScoresKernels& kernels = *execution.isa.scores;
  const int planes = execution.isa.facts(job.score).query_planes;
  const int64_t floats = planes * padded_features(job.num_features);
  const int64_t fit = kRowsBytes / int64_t{sizeof(float)} / floats / 4 * 4;
  const int64_t step = job.index ? kPairsPerTask : std::max<int64_t>(fit, 4);
  const int64_t queries = job.index ? 1 : kBlockQueries, blocks = divide_up(job.per_query, step);
  const int64_t parts = divide_up(job.query.count, queries);
  return parallel_with_scratch(
      execution, blocks * parts, floats, [&](int64_t task, float* scratch) {
        const int64_t first = task / parts * step, row = task % parts * queries;
        for (int64_t i = row; i < std::min(row + queries, job.query.count); ++i)
          kernels.indexed(job, i, first, std::min(first + step, job.per_query), scratch);
      });
}

}  // namespace

bool scores(const Execution& execution, const ScoresJob& job) {
  if (!job.query.count || !job.per_query) return false;
  const ScoreFacts facts = execution.isa.facts(job.score);
  if (job.index || facts.is_rscf) return score_in_place(execution, job);
  if (facts.terms == Terms::products) return product_scores(execution, job);
  return score_panels(execution, job);
}

}  // namespace kgfast
