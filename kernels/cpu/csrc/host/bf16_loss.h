// Losses of `dot` over all candidates. Products round operands to bf16 and sum in float32. Scores,
// terms of the loss and both gradients are computed block by block.
//
// Tiles, of 1 KiB each: [16 rows][32 terms] on the left of a product;
// [16 pairs of terms][16 columns][2 terms] on its right; [16][16] float32 of sums. Plain data, like
// job.h.
#pragma once
#include "host/losses.h"
#include "host/view.h"

namespace kgfast {

constexpr int64_t kTileRows = 16, kTilePair = 2 * kTileRows;
constexpr int64_t kTileNumbers = 512, kTileSums = 256;  // bf16 numbers, float32 sums

// Distinct pairs with a label of their own.
struct PositivePairs {
  const int64_t *queries, *candidates;  // [P]
  int64_t count;                        // P
  float* scores;                        // [P], written where sums are asked for
  const float* share;                   // [B]: subtracted from the slope of a positive pair
};

// Division of a problem, by its sizes alone, so that threads change no sum.
struct Bf16Shape {
  int64_t queries, features;     // multiples of kTilePair
  int64_t block, num_blocks;     // candidates whose slopes are held together
  int64_t columns;               // queries whose slopes are held together
  int64_t stripe, num_stripes;   // blocks that share a part of sums and of the queries' gradient
};

struct Bf16LossJob : Operands {
  LossPass pass;             // none of the adversarial passes
  const float* bias;         // [N] or nullptr
  int64_t num_features;
  PositivePairs positives;
  double* sums[3];           // [B]: a, b and c of LossTile, written
  const float* factors[3];   // [B]: shift, scale and share of LossTile
  float constant;
  View grad_query, grad_rows;  // no data where not asked for
  bool adds_to_rows;           // grad_rows (float32) holds a gradient already
  float* grad_bias;            // [N], added to, or nullptr

  // Fields that the driver adds.
  Bf16Shape shape;
  const uint16_t* queries_right;     // [queries / 16][features / 32] tiles, of pairs of features
  const uint16_t* coefficients_right;  // [features / 16][queries / 32] tiles, of pairs of queries
  const float* lanes;                // [3][queries]: the factors; absent queries get slopes of 0
  const int64_t* first_positive;     // [blocks][parts of `columns`] + 1: places in positive_order
  const int64_t* positive_order;     // [P]: by block, part and pair of tiles, as scores are made
  double* stripe_sums;               // [stripes][3][queries]
  float* stripe_gradients;           // [stripes][queries / 16][features][16]
};

struct Bf16Kernels {
  int64_t (*scratch)(const Bf16LossJob&);  // floats of `scratch` below
  // Packs 32 queries.
  void (*pack)(const Bf16LossJob&, int64_t group, uint16_t* queries, uint16_t* coefficients,
               float* scratch);
  void (*stripe)(const Bf16LossJob&, int64_t stripe, float* scratch);
  // Adds the stripes' gradients of 16 queries, in their order.
  void (*finish)(const Bf16LossJob&, int64_t tile, float* scratch);
};

// Computes a loss where tiers_of(execution.isa).bf16 exists; returns true if interrupted.
bool bf16_loss(const Execution& execution, Bf16LossJob& job);

}  // namespace kgfast
