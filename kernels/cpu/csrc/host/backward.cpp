#include "host/backward.h"

#include <algorithm>
#include <vector>

#include "host/parallel.h"
#include "host/product.h"
#include "host/scores.h"

namespace kgfast {

std::vector<FeatureBlock> feature_blocks(const ScoreGradient& grad, int64_t width) {
  std::vector<FeatureBlock> blocks;
  int64_t feature = 0;
  for (int64_t crop = 0; crop < grad.num_crops; ++crop)
    for (bool begins = true; feature < grad.widths[crop]; begins = false) {
      blocks.push_back({feature, std::min(width, grad.widths[crop] - feature), begins});
      feature += blocks.back().count;
    }
  return blocks;
}

TermRanges term_ranges(int64_t terms, int64_t wanted, int64_t range_bytes, int64_t least,
                       int64_t unit) {
  constexpr int64_t all_bytes = 16 << 20;
  const int64_t most =
      std::min(divide_up(terms, least), all_bytes / std::max<int64_t>(range_bytes, 1));
  const int64_t ranges = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1));
  const int64_t units = divide_up(divide_up(terms, ranges), unit);
  const int64_t size = std::max<int64_t>(units, 1) * unit;
  return {size, std::max<int64_t>(1, divide_up(terms, size))};
}

namespace {

constexpr int64_t kSumsBytes = 24 << 20;     // for all workers together
constexpr int64_t kTasks = 48;               // enough to keep many threads busy to the end
constexpr int64_t kIdsPerTask = 32;
constexpr int64_t kTurnedBytes = 24 << 20;

bool backward_of_queries(const Execution& execution, const IndexedBackwardJob& job,
                         int64_t floats) {
  return parallel_with_scratch(
      execution, job.query.count, 3 * floats,
      [&](int64_t row, float* scratch) { execution.isa.backward->query(job, row, scratch); });
}

bool backward_of_rows(const Execution& execution, IndexedBackwardJob job, int64_t floats) {
  const BackwardKernels& kernels = *execution.isa.backward;
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
      execution, divide_up(job.groups.count, kIdsPerTask), 3 * floats,
      [&](int64_t task, float* scratch) {
        const int64_t end = std::min((task + 1) * kIdsPerTask, job.groups.count);
        for (int64_t id = task * kIdsPerTask; id < end; ++id) kernels.row(job, id, scratch);
      });
}

// Computes the gradients of all pairs: slices of the features and, where slices are few, ranges of
// candidates.
bool pairwise_backward(const Execution& execution, const BackwardJob& all) {
  PairwiseBackwardJob job{all};
  const BackwardKernels& kernels = *execution.isa.backward;
  const SliceShape shape = kernels.slice_shape(job.score);
  const std::vector<FeatureBlock> blocks = feature_blocks(job.grad, shape.width);
  const int64_t numbers = job.query.count * shape.floats;
  job.blocks = blocks.data();
  job.num_blocks = static_cast<int64_t>(blocks.size());
  job.num_slices = divide_up(job.num_blocks, shape.blocks);
  const TermRanges ranges =
      term_ranges(job.rows.view.count, divide_up(kTasks, job.num_slices),
                  job.num_slices * numbers * int64_t{sizeof(float)}, 256, 64);
  job.range_size = ranges.size;
  job.num_ranges = ranges.count;
  const bool partial = job.grad_query.data && job.num_ranges > 1;
  Buffer<float> partial_totals(partial ? job.num_slices * job.num_ranges * numbers : 0);
  job.partial_totals = partial_totals.data;

  const int64_t tasks = job.num_slices * job.num_ranges;
  const int64_t fit = kSumsBytes / std::max<int64_t>(3 * numbers * int64_t{sizeof(float)}, 1);
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

}  // namespace

bool backward(const Execution& execution, const BackwardJob& job) {
  const ScoreFacts facts = execution.isa.facts(job.score);
  if (job.per_query >= 0) {
    const int64_t floats = facts.query_planes * padded_features(job.num_features);  // of a query
    if (job.grad_query.data && backward_of_queries(execution, {job, nullptr}, floats)) return true;
    const bool has_rows = job.grad_rows.view.data || job.grad_rows.factor.data;
    return has_rows && backward_of_rows(execution, {job, nullptr}, floats);
  }
  const bool is_product = facts.terms == Terms::products;
  return is_product ? product_backward(execution, job) : pairwise_backward(execution, job);
}

}  // namespace kgfast
