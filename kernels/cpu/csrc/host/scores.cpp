#include "host/scores.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "host/buffer.h"
#include "host/passes.h"
#include "host/product.h"

namespace kgfast {
namespace {

constexpr int64_t kPairsPerTask = 256;
constexpr int64_t kBlockBytes = 1 << 20;  // for rows that a block of queries meets, at most
constexpr int64_t kBlockQueries = 64;

class PanelSweep {
 public:
  PanelSweep(const Execution& execution, const ScoresJob& job)
      : isa_(execution.isa), interrupted_(execution.interrupted), facts_(isa_.facts(job.score)),
        job_{begin_sweep(isa_, job), job.crops, job.out}, sweep_(job_.sweep), lanes_(facts_.lanes),
        tile_(facts_.tile_queries), threads_(std::max(execution.threads, 1)),
        num_queries_(job.query.count), rows_(num_queries_) {
    sweep_.bias = job.bias;
    sweep_.num_features = job.num_features;
    std::iota(rows_.begin(), rows_.end(), 0);
    const int64_t feature_bytes = facts_.planes * lanes_ * int64_t{sizeof(float)};
    const int64_t panel_bytes = std::min(kPanelBytes, kScratchBytes / 2 / threads_);
    const int64_t block = std::max<int64_t>(64, panel_bytes / feature_bytes / 64 * 64);
    sweep_.features_per_block = std::min(sweep_.num_features, block);
    const int64_t row_bytes = sweep_.num_features * facts_.planes * int64_t{sizeof(float)};
    int64_t rows = kPackedQueryBytes / row_bytes;
    const bool blocked = sweep_.features_per_block < sweep_.num_features;
    if (blocked)
      rows = std::min(rows, kScratchBytes / 2 / threads_ / (lanes_ * int64_t{sizeof(float)}));
    rows = std::min(rows, divide_up(num_queries_, tile_) * tile_);
    pass_ = std::max<int64_t>(tile_, rows / tile_ * tile_);
    packed_ = std::make_unique<Buffer<float>>(pass_ * sweep_.num_features * facts_.planes);
    for (int i = 0; i < threads_; ++i) {
      buffers_.push_back(std::make_unique<Buffer<float>>(
          sweep_.features_per_block * facts_.planes * lanes_ + (blocked ? pass_ * lanes_ : 0)));
      Worker worker{};
      worker.room = buffers_.back()->data;
      worker.totals = worker.room + sweep_.features_per_block * facts_.planes * lanes_;
      worker.bad_candidate = INT64_MAX;
      workers_.push_back(worker);
    }
  }

  bool run() {
    for (int64_t first = 0; first < num_queries_; first += pass_) {
      sweep_.query_ids = rows_.data() + first;
      sweep_.num_queries = std::min(pass_, num_queries_ - first);
      if (pack() || sweep()) return true;
    }
    return false;
  }

 private:
  bool pack() {
    constexpr int64_t tiles_per_task = 8;
    const int64_t step = tiles_per_task * tile_;
    sweep_.packed_queries = packed_->data;
    return parallel(threads_, divide_up(sweep_.num_queries, step), interrupted_,
                    [&](int, int64_t task) {
                      SweepJob part = sweep_;
                      part.query_ids += task * step;
                      part.num_queries = std::min(step, sweep_.num_queries - task * step);
                      isa_.pack_queries(part, packed_->data + task * step * sweep_.num_features *
                                                                  facts_.planes);
                    });
  }

  // Sweeps by tasks: a task is a panel, with a part of the queries where panels are few.
  bool sweep() {
    const int64_t panels = divide_up(sweep_.num_candidates, lanes_);
    const int64_t pieces = divide_up(4 * threads_, std::max<int64_t>(panels, 1));
    const int64_t step =
        std::max<int64_t>(divide_up(divide_up(sweep_.num_queries, pieces), tile_), 8) * tile_;
    const int64_t parts = divide_up(sweep_.num_queries, step);
    return parallel(threads_, panels * parts, interrupted_, [&](int worker, int64_t task) {
      const int64_t first = task % parts * step;
      isa_.scores->panel(job_, task / parts, first,
                           std::min(first + step, sweep_.num_queries), workers_[worker]);
    });
  }

  const Isa& isa_;
  const std::function<bool()>& interrupted_;
  const ScoreFacts facts_;
  PanelJob job_;
  SweepJob& sweep_;
  const int64_t lanes_, tile_;
  const int threads_;
  const int64_t num_queries_;
  int64_t pass_ = 1;  // queries per pass
  std::vector<int64_t> rows_;
  std::unique_ptr<Buffer<float>> packed_;
  std::vector<std::unique_ptr<Buffer<float>>> buffers_;
  std::vector<Worker> workers_;
};

// Scores each query with the rows that it names.
bool score_indexed(const Execution& execution, const ScoresJob& job) {
  const ScoresKernels& kernels = *execution.isa.scores;
  const int64_t parts = divide_up(job.per_query, kPairsPerTask);
  return parallel_with_scratch(
      execution, job.query.count * parts, kernels.query_floats(job.score, job.num_features),
      [&](int64_t task, float* scratch) {
        const int64_t first = task % parts * kPairsPerTask;
        kernels.indexed(job, task / parts, first, std::min(first + kPairsPerTask, job.per_query),
                        scratch);
      });
}

// Scores all rows by an rscf score, for which the kernels of scores have no panels.
bool score_blocks(const Execution& execution, const ScoresJob& job) {
  const ScoresKernels& kernels = *execution.isa.scores;
  const int64_t row_bytes =
      int64_t{sizeof(float)} * kernels.query_floats(job.score, job.num_features);
  const int64_t step = std::max<int64_t>(kBlockBytes / row_bytes / 4 * 4, 4);
  const int64_t blocks = divide_up(job.per_query, step);
  const int64_t parts = divide_up(job.query.count, kBlockQueries);
  return parallel_with_scratch(
      execution, blocks * parts, kernels.block_scratch(job, step),
      [&](int64_t task, float* scratch) {
        const int64_t first = task / parts * step, row = task % parts * kBlockQueries;
        kernels.block(job, row, std::min(row + kBlockQueries, job.query.count), first,
                      std::min(first + step, job.per_query), scratch);
      });
}

}  // namespace

bool scores(const Execution& execution, const ScoresJob& job) {
  if (!job.query.count || !job.per_query) return false;
  if (job.index) return score_indexed(execution, job);
  const ScoreFacts facts = execution.isa.facts(job.score);
  if (facts.is_rscf) return score_blocks(execution, job);
  if (facts.terms == Terms::products) return product_scores(execution, job);
  return PanelSweep(execution, job).run();
}

}  // namespace kgfast
