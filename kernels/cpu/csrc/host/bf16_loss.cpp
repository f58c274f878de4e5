#include "host/bf16_loss.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "host/parallel.h"

namespace kgfast {
namespace {

constexpr int64_t kMostRows = 256;        // rows of a block, and queries beside them
constexpr int64_t kBlockNumbers = 1 << 16;  // numbers of packed candidates: they stay in the cache
constexpr int64_t kLeastBlocks = 16;
constexpr int64_t kStripes = 24;          // enough to keep many threads busy to the end
constexpr int64_t kLeastStripes = 4;
constexpr int64_t kStripeRows = 1536;  // ten times the work of a part of the gradient
constexpr int64_t kPartBytes = 16 << 20;  // for the stripes' gradients

int64_t whole_pairs(int64_t count) { return divide_up(count, kTilePair) * kTilePair; }

Bf16Shape shape_of(const Bf16LossJob& job) {
  Bf16Shape shape{};
  const int64_t candidates = job.rows.view.count;
  shape.queries = whole_pairs(job.query.count);
  shape.features = whole_pairs(job.num_features);
  const int64_t fit = std::min(kBlockNumbers / shape.features, divide_up(candidates, kLeastBlocks));
  shape.block = std::clamp(fit / kTilePair * kTilePair, kTilePair, kMostRows);
  shape.num_blocks = divide_up(candidates, shape.block);
  shape.columns = whole_pairs(divide_up(shape.queries, divide_up(shape.queries, kMostRows)));
  const int64_t bytes = shape.queries * shape.features * static_cast<int64_t>(sizeof(float));
  int64_t stripes = kStripes;
  if (job.grad_query.data) {
    stripes = std::clamp(divide_up(candidates, kStripeRows), kLeastStripes, kStripes);
    stripes = std::clamp<int64_t>(kPartBytes / bytes, 1, stripes);
  }
  shape.stripe = divide_up(shape.num_blocks, stripes);
  shape.num_stripes = divide_up(shape.num_blocks, shape.stripe);
  return shape;
}

// Returns the factors, padded with values that give absent queries slopes of 0.
std::vector<float> lanes_of(const Bf16LossJob& job) {
  const int64_t step = job.shape.queries;
  std::vector<float> lanes(3 * step, 0.0f);
  std::fill_n(lanes.begin(), step, FLT_MAX);  // the shift
  for (int64_t i = 0; i < 3; ++i)
    if (job.factors[i]) std::copy_n(job.factors[i], job.query.count, lanes.begin() + i * step);
  return lanes;
}

// Positives in the order in which their scores are made.
struct OrderedPositives {
  std::vector<int64_t> first, order;

  explicit OrderedPositives(const Bf16LossJob& job) : order(job.positives.count) {
    const PositivePairs& pairs = job.positives;
    const Bf16Shape& shape = job.shape;
    const int64_t across = divide_up(shape.queries, shape.columns);
    const int64_t parts = shape.num_blocks * across;
    const auto part_of = [&](int64_t p) {
      return pairs.candidates[p] / shape.block * across + pairs.queries[p] / shape.columns;
    };
    first.resize(parts + 2);
    for (int64_t p = 0; p < pairs.count; ++p) ++first[part_of(p) + 2];
    for (int64_t part = 0; part < parts; ++part) first[part + 2] += first[part + 1];
    for (int64_t p = 0; p < pairs.count; ++p) order[first[part_of(p) + 1]++] = p;
    const auto earlier = [&](int64_t a, int64_t b) {
      const int64_t i = pairs.queries[a] / kTilePair, j = pairs.queries[b] / kTilePair;
      return i != j ? i < j : pairs.candidates[a] < pairs.candidates[b];
    };
    for (int64_t part = 0; part < parts; ++part)
      std::sort(order.begin() + first[part], order.begin() + first[part + 1], earlier);
  }
};

void add_sums(const Bf16LossJob& job) {
  const int64_t queries = job.shape.queries;
  const bool is_softmax = job.pass == LossPass::exp_sums;
  for (int64_t query = 0; query < job.query.count; ++query) {
    const double* parts = job.stripe_sums + query;
    double peak = -FLT_MAX, sums[3] = {};
    for (int64_t stripe = 0; is_softmax && stripe < job.shape.num_stripes; ++stripe)
      peak = std::max(peak, parts[3 * stripe * queries]);
    for (int64_t stripe = 0; stripe < job.shape.num_stripes; ++stripe, parts += 3 * queries) {
      const double factor = is_softmax && parts[0] < peak ? std::exp(parts[0] - peak) : 1.0;
      sums[0] += parts[0];
      sums[1] += factor * parts[queries];
      sums[2] += parts[2 * queries];
    }
    if (is_softmax) sums[0] = peak;
    for (int i = 0; i < 3; ++i)
      if (job.sums[i]) job.sums[i][query] = sums[i];
  }
}

}  // namespace

bool bf16_loss(const Execution& execution, Bf16LossJob& job) {
  const Bf16Kernels& kernels = *tiers_of(execution.isa).bf16;
  const Bf16Shape shape = job.shape = shape_of(job);
  const int64_t numbers = shape.queries * shape.features;
  Buffer<uint16_t> packed((job.grad_rows.data ? 2 : 1) * numbers);
  uint16_t* coefficients = job.grad_rows.data ? packed.data + numbers : nullptr;
  job.queries_right = packed.data;
  job.coefficients_right = coefficients;
  const int64_t scratch = kernels.scratch(job);
  if (parallel_with_scratch(
          execution, shape.queries / kTilePair, scratch, [&](int64_t group, float* own) {
            kernels.pack(job, group, packed.data, coefficients, own);
          }))
    return true;
  const std::vector<float> lanes = lanes_of(job);
  const OrderedPositives positives(job);
  Buffer<double> sums(shape.num_stripes * 3 * shape.queries);
  Buffer<float> gradients(job.grad_query.data ? shape.num_stripes * numbers : 0);
  job.lanes = lanes.data();
  job.first_positive = positives.first.data();
  job.positive_order = positives.order.data();
  job.stripe_sums = sums.data;
  job.stripe_gradients = gradients.data;
  if (parallel_with_scratch(execution, shape.num_stripes, scratch,
                            [&](int64_t stripe, float* own) { kernels.stripe(job, stripe, own); }))
    return true;
  add_sums(job);
  return job.grad_query.data &&
         parallel_with_scratch(execution, shape.queries / kTileRows, scratch,
                               [&](int64_t tile, float* own) { kernels.finish(job, tile, own); });
}

}  // namespace kgfast
