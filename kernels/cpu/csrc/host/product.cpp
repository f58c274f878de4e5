#include "host/product.h"

#include <algorithm>
#include <vector>

#include "host/parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kTasks = 24;               // enough to keep many threads busy to the end
constexpr int64_t kLeastRange = 1024;
// Bytes of the queries of one pass over scores, or of the other side of a gradient.
constexpr int64_t kPackedBytes = 12 << 20;

// Cuts runs into strips within one run each. Strips of a run have nearly as many vectors, as a
// short strip costs more a number.
std::vector<FeatureBlock> strips_of(const std::vector<FeatureBlock>& runs,
                                    const ProductShape& shape) {
  std::vector<FeatureBlock> strips;
  for (const FeatureBlock& run : runs) {
    const int64_t vectors = divide_up(run.count, shape.vector);
    const int64_t parts = divide_up(run.count, shape.strip);
    int64_t at = 0;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t wide = (vectors / parts + (i < vectors % parts)) * shape.vector;
      strips.push_back({run.feature + at, std::min(wide, run.count - at), i == 0});
      at += wide;
    }
  }
  return strips;
}

// Plans blocks and, where blocks are few, ranges.
void plan(ProductJob& job, const ProductKernels& kernels) {
  const int64_t rows = job.out.count, terms = job.other.count;
  const ProductShape shape = kernels.shape();
  job.block = std::clamp<int64_t>(rows, 1, shape.rows);
  job.num_blocks = divide_up(rows, job.block);
  const int64_t bytes = job.num_blocks * kernels.block_floats(job) * int64_t{sizeof(float)};
  const int64_t wanted = job.adds ? 1 : divide_up(kTasks, std::max<int64_t>(job.num_blocks, 1));
  const TermRanges ranges = term_ranges(terms, wanted, bytes, kLeastRange, shape.depth);
  job.range_size = ranges.size;
  job.num_ranges = ranges.count;
}

bool run(const Execution& execution, ProductJob& job) {
  const ProductKernels& kernels = *execution.isa.product;
  plan(job, kernels);
  const bool partial = job.num_ranges > 1;
  const int64_t sums = kernels.block_floats(job);
  Buffer<float> partial_sums(partial ? job.num_ranges * job.num_blocks * sums : 0);
  job.partial_sums = partial_sums.data;
  const ProductShape shape = kernels.shape();
  const int64_t count = divide_up(job.other.count, shape.depth) * job.num_strips;
  const bool packs = job.num_blocks > 1 &&
                     count * shape.packed * static_cast<int64_t>(sizeof(float)) <= kPackedBytes;
  const Buffer<float> packed(packs ? count * shape.packed : 0);
  job.packed = packs ? packed.data : nullptr;
  if (packs && parallel(execution.threads, count, execution.interrupted, [&](int, int64_t index) {
        kernels.pack_others(job, index, packed.data + index * shape.packed);
      }))
    return true;
  const bool stopped = parallel_with_scratch(
      execution, job.num_blocks * job.num_ranges,
      shape.scratch + (partial ? 0 : sums), [&](int64_t task, float* scratch) {
        kernels.sum_range(job, task / job.num_ranges, task % job.num_ranges, scratch);
      });
  if (stopped || !partial) return stopped;
  return parallel(execution.threads, job.num_blocks, execution.interrupted,
                  [&](int, int64_t block) { kernels.add_ranges(job, block); });
}

}  // namespace

bool product_scores(const Execution& execution, const ScoresJob& operands) {
  const ProductKernels& kernels = *execution.isa.product;
  const ProductShape shape = kernels.shape();
  const ProductScoresShape tile = kernels.scores_shape(operands);
  const std::vector<FeatureBlock> strips = strips_of({{0, operands.query.count, true}}, shape);
  const int64_t num_strips = static_cast<int64_t>(strips.size());
  const int64_t floats = operands.num_features * shape.strip;
  const int64_t fit = kPackedBytes / (floats * static_cast<int64_t>(sizeof(float)));
  const int64_t pass = std::clamp<int64_t>(fit, 1, num_strips);
  const Buffer<float> packed(pass * floats);
  ProductScoresJob job{operands, nullptr, packed.data};
  const int64_t blocks = divide_up(job.per_query, tile.rows);
  for (int64_t first = 0; first < num_strips; first += pass) {
    job.strips = strips.data() + first;
    const int64_t count = std::min(pass, num_strips - first);
    if (parallel(execution.threads, count, execution.interrupted, [&](int, int64_t strip) {
          kernels.pack(job, strip, packed.data + strip * floats);
        }))
      return true;
    const int64_t wanted = divide_up(4 * execution.threads, blocks);  // tasks of a block of rows
    const int64_t step = std::max<int64_t>(count / wanted, 1), parts = divide_up(count, step);
    if (parallel_with_scratch(
            execution, blocks * parts, tile.scratch, [&](int64_t task, float* scratch) {
              const int64_t from = task % parts * step;
              kernels.scores(job, task / parts, from, std::min(from + step, count), scratch);
            }))
      return true;
  }
  return false;
}

bool product_backward(const Execution& execution, const BackwardJob& job) {
  const std::vector<FeatureBlock> strips =
      strips_of(feature_blocks(job.grad, INT64_MAX), execution.isa.product->shape());
  ProductJob product{};
  product.strips = strips.data();
  product.num_strips = static_cast<int64_t>(strips.size());
  product.grad = job.grad;
  product.out = job.grad_query;
  product.other = job.rows.view;
  if (product.out.data && run(execution, product)) return true;
  std::swap(product.grad.row_stride, product.grad.column_stride);
  product.out = job.grad_rows.view;
  product.other = job.query;
  product.adds = job.adds_to_rows;
  return product.out.data && run(execution, product);
}

}  // namespace kgfast
