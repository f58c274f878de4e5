#include "host/pairwise.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "host/buffer.h"
#include "host/parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kPackedQueryBytes = 12 << 20;  // of one pass
constexpr int64_t kPanelBytes = 1 << 20;         // of one worker, at most
constexpr int64_t kScratchBytes = 24 << 20;      // of all workers together
constexpr int64_t kPartBytes = 16 << 20;         // of the stripes' gradients
constexpr int64_t kPullTasks = 48;               // enough to keep many threads busy to the end

class PairwiseSweep {
 public:
  PairwiseSweep(const Isa& isa, PairwiseJob& job, int threads,
                const std::function<bool()>& interrupted)
      : isa_(isa), job_(job), sweep_(job.sweep), interrupted_(interrupted),
        lanes_(isa.lanes(sweep_.score)), tile_(isa.tile_queries(sweep_.score)),
        threads_(std::max(threads, 1)), rows_(job.all_queries) {
    std::iota(rows_.begin(), rows_.end(), 0);
    const int64_t feature_bytes = sweep_.planes * lanes_ * sizeof(float);
    const int64_t panel_bytes = std::min(kPanelBytes, kScratchBytes / 2 / threads_);
    const int64_t block = std::max<int64_t>(64, panel_bytes / feature_bytes / 64 * 64);
    sweep_.features_per_block = std::min(sweep_.num_features, block);
    const int64_t row_bytes = sweep_.num_features * sweep_.planes * sizeof(float);
    int64_t rows = kPackedQueryBytes / row_bytes;
    const bool blocked = sweep_.features_per_block < sweep_.num_features;
    if (blocked)
      rows = std::min<int64_t>(rows, kScratchBytes / 2 / threads_ / (lanes_ * sizeof(float)));
    rows = std::min(rows, divide_up(job.all_queries, tile_) * tile_);
    pass_ = std::max<int64_t>(tile_, rows / tile_ * tile_);
    packed_ = std::make_unique<Buffer<float>>(pass_ * sweep_.num_features * sweep_.planes);
    for (int i = 0; i < threads_; ++i) {
      buffers_.push_back(std::make_unique<Buffer<float>>(
          sweep_.features_per_block * sweep_.planes * lanes_ + (blocked ? pass_ * lanes_ : 0)));
      Worker worker{};
      worker.panel = buffers_.back()->data;
      worker.totals = worker.panel + sweep_.features_per_block * sweep_.planes * lanes_;
      worker.bad_candidate = INT64_MAX;
      workers_.push_back(worker);
    }
  }

  bool run() {
    for (int64_t first = 0; first < job_.all_queries; first += pass_) {
      sweep_.query_ids = rows_.data() + first;
      sweep_.num_queries = std::min(pass_, job_.all_queries - first);
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
                                                                  sweep_.planes);
                    });
  }

  // A task is a panel, or a part of the queries with it where panels are few.
  bool sweep() {
    const int64_t panels = divide_up(sweep_.num_candidates, lanes_);
    const int64_t wanted = divide_up(4 * threads_, std::max<int64_t>(panels, 1));
    const int64_t step =
        std::max<int64_t>(divide_up(divide_up(sweep_.num_queries, wanted), tile_), 8) * tile_;
    const int64_t parts = divide_up(sweep_.num_queries, step);
    return parallel(threads_, panels * parts, interrupted_, [&](int worker, int64_t task) {
      const int64_t first = task % parts * step;
      isa_.pairwise->sweep(job_, task / parts, first,
                           std::min(first + step, sweep_.num_queries), workers_[worker]);
    });
  }

  const Isa& isa_;
  PairwiseJob& job_;
  SweepJob& sweep_;
  const std::function<bool()>& interrupted_;
  const int64_t lanes_, tile_;
  const int threads_;
  int64_t pass_ = 1;  // queries per pass
  std::vector<int64_t> rows_;
  std::unique_ptr<Buffer<float>> packed_;
  std::vector<std::unique_ptr<Buffer<float>>> buffers_;
  std::vector<Worker> workers_;
};

// Blocks of at most `width` features, none across the end of a crop.
std::vector<FeatureBlock> feature_blocks(const ScoreGradient& grad, int64_t width) {
  std::vector<int64_t> ends(grad.widths, grad.widths + grad.num_crops);
  std::sort(ends.begin(), ends.end());
  std::vector<FeatureBlock> blocks;
  int64_t feature = 0;
  for (const int64_t end : ends)
    for (bool begins = true; feature < end; begins = false) {
      blocks.push_back({feature, std::min(width, end - feature), begins});
      feature += blocks.back().count;
    }
  return blocks;
}

// Spans, and stripes where spans are few: by the shape alone, so that threads change no sum.
void plan(PullJob& job, int64_t blocks_per_span, int64_t part_bytes) {
  job.num_spans = divide_up(job.num_blocks, blocks_per_span);
  const int64_t most = std::min(divide_up(job.num_candidates, 256),
                                kPartBytes / std::max<int64_t>(job.num_spans * part_bytes, 1));
  const int64_t stripes = std::clamp<int64_t>(divide_up(kPullTasks, job.num_spans), 1,
                                              std::max<int64_t>(most, 1));
  job.stripe = std::max<int64_t>(divide_up(divide_up(job.num_candidates, stripes), 64), 1) * 64;
  job.num_stripes = std::max<int64_t>(1, divide_up(job.num_candidates, job.stripe));
}

}  // namespace

bool pairwise_scores(const Isa& isa, PairwiseJob& job, int threads,
                     const std::function<bool()>& interrupted) {
  if (!job.all_queries || !job.sweep.num_candidates) return false;
  return PairwiseSweep(isa, job, threads, interrupted).run();
}

bool pairwise_backward(const Isa& isa, PullJob& job, int threads,
                       const std::function<bool()>& interrupted) {
  const PairwiseKernels& kernels = *isa.pairwise;
  const PullShape shape = kernels.shape(job.score);
  const std::vector<FeatureBlock> blocks = feature_blocks(job.grad, shape.width);
  const int64_t numbers = job.num_queries * shape.floats;
  job.blocks = blocks.data();
  job.num_blocks = static_cast<int64_t>(blocks.size());
  plan(job, shape.blocks, numbers * sizeof(float));
  const bool partial = job.grad_query.data && job.num_stripes > 1;
  Buffer<float> parts(partial ? job.num_spans * job.num_stripes * numbers : 0);
  job.parts = parts.data;

  const int64_t tasks = job.num_spans * job.num_stripes;
  const int64_t fit = kScratchBytes / std::max<int64_t>(3 * numbers * sizeof(float), 1);
  threads = static_cast<int>(std::clamp<int64_t>(std::min(fit, tasks), 1, std::max(threads, 1)));
  Buffer<float> scratch(threads * 3 * numbers);
  const bool stopped =
      parallel(threads, tasks, interrupted, [&](int index, int64_t task) {
        float* own = scratch.data + index * 3 * numbers;
        PullWorker worker{own, own + numbers, own + 2 * numbers};
        kernels.pull(job, task / job.num_stripes, task % job.num_stripes, worker);
      });
  if (stopped || !partial) return stopped;
  return parallel(threads, job.num_spans, interrupted,
                  [&](int, int64_t span) { kernels.reduce(job, span); });
}

}  // namespace kgfast
