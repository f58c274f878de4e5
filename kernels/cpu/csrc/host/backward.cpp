#include "host/backward.h"

#include <algorithm>
#include <vector>

#include "host/parallel.h"
#include "host/product.h"
#include "host/scores.h"

namespace kgfast {

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

namespace {

constexpr int64_t kScratchBytes = 24 << 20;  // for all workers together
constexpr int64_t kPartialBytes = 16 << 20;  // for the gradients by ranges of candidates
constexpr int64_t kTasks = 48;               // enough to keep many threads busy to the end
constexpr int64_t kIdsPerTask = 32;
constexpr int64_t kTurnedBytes = 24 << 20;

// Plans slices of features and, where slices are few, ranges of candidates: by the shape alone, so
// threads change no sum.
void plan(PairwiseBackwardJob& job, int64_t blocks_per_slice, int64_t slice_bytes) {
  job.num_slices = divide_up(job.num_blocks, blocks_per_slice);
  const int64_t most = std::min(divide_up(job.rows.view.count, 256),
                                kPartialBytes / std::max<int64_t>(job.num_slices * slice_bytes, 1));
  const int64_t ranges = std::clamp<int64_t>(divide_up(kTasks, job.num_slices), 1,
                                             std::max<int64_t>(most, 1));
  job.range_size = std::max<int64_t>(divide_up(divide_up(job.rows.view.count, ranges), 64), 1) * 64;
  job.num_ranges = std::max<int64_t>(1, divide_up(job.rows.view.count, job.range_size));
}

bool backward_of_queries(const Execution& execution, const IndexedBackwardJob& job) {
  const BackwardKernels& kernels = *execution.isa.backward;
  return parallel_with_scratch(
      execution, job.query.count, kernels.scratch(job.score, job.num_features),
      [&](int64_t row, float* scratch) { kernels.query(job, row, scratch); });
}

bool backward_of_rows(const Execution& execution, IndexedBackwardJob& job) {
  const BackwardKernels& kernels = *execution.isa.backward;
  const int64_t floats = execution.isa.scores->query_floats(job.score, job.num_features);
  const bool turns = execution.isa.facts(job.score).has_phase &&
                     job.query.count * floats * int64_t{sizeof(float)} <= kTurnedBytes;
  Buffer<float> turned(turns ? job.query.count * floats : 0);
  if (turns) {  // turns each query once, for all its rows
    job.turned = turned.data;
    if (parallel(execution.threads, job.query.count, execution.interrupted,
                 [&](int, int64_t row) { kernels.turn(job, row, turned.data + row * floats); }))
      return true;
  }
  return parallel_with_scratch(
      execution, divide_up(job.groups.count, kIdsPerTask),
      kernels.scratch(job.score, job.num_features), [&](int64_t task, float* scratch) {
        const int64_t end = std::min((task + 1) * kIdsPerTask, job.groups.count);
        for (int64_t id = task * kIdsPerTask; id < end; ++id) kernels.row(job, id, scratch);
      });
}

}  // namespace

bool pairwise_backward(const Execution& execution, PairwiseBackwardJob& job) {
  if (execution.isa.facts(job.score).terms == Terms::products)
    return product_backward(execution, job);
  const BackwardKernels& kernels = *execution.isa.backward;
  const SliceShape shape = kernels.slice_shape(job.score);
  const std::vector<FeatureBlock> blocks = feature_blocks(job.grad, shape.width);
  const int64_t numbers = job.query.count * shape.floats;
  job.blocks = blocks.data();
  job.num_blocks = static_cast<int64_t>(blocks.size());
  plan(job, shape.blocks, numbers * int64_t{sizeof(float)});
  const bool partial = job.grad_query.data && job.num_ranges > 1;
  Buffer<float> partial_totals(partial ? job.num_slices * job.num_ranges * numbers : 0);
  job.partial_totals = partial_totals.data;

  const int64_t tasks = job.num_slices * job.num_ranges;
  const int64_t fit = kScratchBytes / std::max<int64_t>(3 * numbers * int64_t{sizeof(float)}, 1);
  const int threads = threads_for(std::min(fit, tasks), execution.threads);
  Buffer<float> scratch(threads * 3 * numbers);
  Buffer<bool> usual(threads * job.query.count);
  const bool stopped =
      parallel(threads, tasks, execution.interrupted, [&](int index, int64_t task) {
        float* room = scratch.data + index * 3 * numbers;
        BackwardWorker worker{room, room + numbers, room + 2 * numbers,
                              usual.data + index * job.query.count};
        kernels.backward_slice(job, task / job.num_ranges, task % job.num_ranges, worker);
      });
  if (stopped || !partial) return stopped;
  return parallel(threads, job.num_slices, execution.interrupted,
                  [&](int, int64_t slice) { kernels.add_ranges(job, slice); });
}

bool indexed_backward(const Execution& execution, IndexedBackwardJob& job) {
  if (job.grad_query.data && backward_of_queries(execution, job)) return true;
  const bool has_rows = job.grad_rows.view.data || job.grad_rows.factor.data;
  return has_rows && backward_of_rows(execution, job);
}

}  // namespace kgfast
