// A block of candidates with all queries: scores, the rows' loss and its slopes, and both
// gradients. The header that was included before, bf16_amx.h or bf16_vector.h, makes the products
// of bf16 numbers.
//
// Cost model: that of the products, and that of bf16_walk.h. Sums of gradients are loaded and
// stored once for a block. Scores are not kept: to make them again takes less time than to move 8
// bytes of each to memory and back. With AMX, the loss of a tile of scores is computed between the
// products of the next tile. Measured by AMX at 500 queries, 14,541 candidates and 256 features: 4
// ms for sums, 13 for slopes and both gradients. The products alone, from the second cache, take 2
// and 6.
#pragma once
#include <cfloat>

#include "engine/bf16_walk.h"

namespace kgfast {
namespace {

// One stripe of blocks.
template <LossPass pass>
class Bf16Stripe {
 public:
  Bf16Stripe(const Bf16LossJob& job, int64_t stripe, float* scratch)
      : job_(job), shape_(job.shape), room_(shape_, scratch),
        sums_(job.stripe_sums + stripe * 3 * shape_.queries),
        gradient_(job.stripe_gradients + stripe * shape_.queries * shape_.features),
        first_block_(stripe * shape_.stripe), depth_(shape_.features / kTilePair) {
    std::fill_n(sums_, 3 * shape_.queries, 0.0);
    std::fill_n(room_.shifts, shape_.queries, -FLT_MAX / 2);  // a shift whose exponent is in range
  }

  void run() {
    const int64_t end = std::min(first_block_ + shape_.stripe, shape_.num_blocks);
    for (int64_t block = first_block_; block < end; ++block) {
      first_ = block * shape_.block;
      count_ = std::min(shape_.block, job_.rows.view.count - first_);
      pairs_ = (count_ + kTilePair - 1) / kTilePair;
      pack_block();
      for (query_ = 0; query_ < shape_.queries; query_ += shape_.columns) {
        columns_ = std::min(shape_.columns, shape_.queries - query_);
        make_scores();
        publish();
        if (job_.grad_rows.data) add_to_rows();
        if (job_.grad_query.data) add_to_queries(block == first_block_);
      }
      if (job_.grad_rows.data) store_rows();
      if (job_.grad_bias) store_bias();
    }
    if constexpr (pass == LossPass::exp_sums)
      for (int64_t i = 0; i < shape_.queries; ++i) sums_[i] = room_.shifts[i];
  }

 private:
  __attribute__((noinline)) void pack_block() {
    for (int64_t i = 0; i < pairs_ * kTilePair; i += kTilePair) {
      const FloatRows rows(job_.rows.view, first_ + i, count_ - i, job_.num_features, room_.rows);
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t k = 0; k < depth_; ++k)
          pack_left(rows, half * kTileRows, k * kTilePair,
                    room_.left + ((i / kTileRows + half) * depth_ + k) * kTileNumbers);
      alignas(64) uint16_t tile[kTileNumbers];
      for (int64_t k = 0; job_.grad_query.data && k < 2 * depth_; ++k) {
        pack_right(rows, k * kTileRows, tile);
        transpose_words(tile, turned_tiles(k) + i / kTilePair * kTileNumbers);
      }
    }
    for (int64_t i = 0; i < pairs_ * kTilePair; ++i)
      room_.bias[i] = job_.bias && i < count_ ? job_.bias[first_ + i] : 0.0f;
    std::fill_n(room_.bias_sums, job_.grad_bias ? shape_.block * kTileRows : 0, 0.0f);
    publish();
  }

  uint16_t* turned_tiles(int64_t k) const {
    return room_.turned + k * (shape_.block / kTilePair) * kTileNumbers;
  }
  uint16_t* slope_rows(int64_t tile) const {
    return room_.by_rows + tile * (shape_.columns / kTilePair) * kTileNumbers;
  }
  uint16_t* slope_pairs(int64_t tile) const {
    return room_.by_pairs + tile * (shape_.block / kTilePair) * kTileNumbers;
  }

  // Computes scores in pairs of tiles: all candidates with 32 queries, then with the next 32.
  __attribute__((noinline)) void make_scores() {
    const int64_t count = columns_ / kTilePair * pairs_;
    const int64_t across = (shape_.queries + shape_.columns - 1) / shape_.columns;
    const int64_t part = first_ / shape_.block * across + query_ / shape_.columns;
    positive_ = job_.first_positive[part];
    last_positive_ = job_.first_positive[part + 1];
    for (int64_t n = 0; n <= count; ++n) {
      float* scores = room_.scores + n % 2 * 4 * kTileSums;
      const SumTiles sums{scores, kTileSums, 2 * kTileSums};
      if (n == 0) {
        multiply(n, sums, [] {});
        continue;
      }
      const int64_t last = n - 1;
      const ScorePair pair = pair_of(last);
      const SlopePair slopes = slopes_of(last);
      LaneWalk<pass> walk(job_, pair, room_.shifts + pair.query,
                          sums_ + shape_.queries + pair.query,
                          sums_ + 2 * shape_.queries + pair.query);
      int64_t done = 0, due = 0;
      if (n < count)
        multiply(n, sums, [&] {  // spread evenly over `depth_` products
          for (due += kTilePair; due >= depth_ * kWalkRows; due -= depth_ * kWalkRows)
            walk.rows(done, slopes), done += kWalkRows;
        });
      for (; done < kTilePair; done += kWalkRows) walk.rows(done, slopes);
      walk.finish();
      see_positives(last, pair, slopes, walk);
    }
  }

  template <class Between>
  void multiply(int64_t n, const SumTiles& sums, Between between) {
    const int64_t tile = n % pairs_ * 2, query = (query_ + n / pairs_ * kTilePair) / kTileRows;
    const uint16_t* left = room_.left + tile * depth_ * kTileNumbers;
    const uint16_t* right = job_.queries_right + query * depth_ * kTileNumbers;
    const int64_t step = depth_ * kTileNumbers;
    make_product({left, left + step}, {right, right + step}, depth_, sums, between);
  }

  ScorePair pair_of(int64_t n) const {
    const int64_t row = n % pairs_ * kTilePair;
    return {room_.scores + n % 2 * 4 * kTileSums, room_.bias + row,
            std::min(kTilePair, count_ - row), query_ + n / pairs_ * kTilePair};
  }

  SlopePair slopes_of(int64_t n) const {
    const int64_t row = n % pairs_, column = n / pairs_;
    return {{slope_rows(2 * row) + column * kTileNumbers,
             slope_rows(2 * row + 1) + column * kTileNumbers},
            {slope_pairs(2 * column) + row * kTileNumbers,
             slope_pairs(2 * column + 1) + row * kTileNumbers},
            job_.grad_bias ? room_.bias_sums + row * kTilePair * kTileRows : nullptr};
  }

  void see_positives(int64_t n, const ScorePair& pair, const SlopePair& slopes,
                     const LaneWalk<pass>& walk) {
    const PositivePairs& positives = job_.positives;
    for (; positive_ < last_positive_; ++positive_) {
      const int64_t p = job_.positive_order[positive_], query = positives.queries[p];
      const int64_t candidate = positives.candidates[p] - first_ - n % pairs_ * kTilePair;
      const int64_t lane = query - pair.query;
      if (candidate >= kTilePair || lane >= kTilePair) return;  // a later pair has this positive
      const V scores = pair.at(candidate, lane / kTileRows);
      if constexpr (has_sums(pass)) {
        alignas(64) float lanes[Simd::W];
        Simd::store(lanes, scores);
        positives.scores[p] = lanes[lane % kTileRows];
      }
      if constexpr (has_slopes(pass))
        slopes.take(candidate, lane, walk.slope(scores, lane / kTileRows), positives.share[query]);
    }
  }

  __attribute__((noinline)) void add_to_rows() {
    const int64_t depth = columns_ / kTilePair, step = shape_.queries / kTilePair * kTileNumbers;
    const int64_t row_sums = 2 * depth_ * kTileSums;  // numbers of 16 candidates
    for (int64_t row = 0; row < 2 * pairs_; row += 2)
      for (int64_t k = 0; k < 2 * depth_; k += 2) {
        const uint16_t* right =
            job_.coefficients_right + k * step + query_ / kTilePair * kTileNumbers;
        const SumTiles sums{room_.gradient + row * row_sums + k * kTileSums, row_sums, kTileSums};
        add_product({slope_rows(row), slope_rows(row + 1)}, {right, right + step}, depth, sums,
                    query_ == 0);
      }
  }

  __attribute__((noinline)) void add_to_queries(bool is_first) {
    const int64_t query_sums = shape_.features * kTileRows;  // numbers of 16 queries
    for (int64_t i = 0; i < columns_ / kTileRows; i += 2)
      for (int64_t k = 0; k < 2 * depth_; k += 2) {
        const SumTiles sums{gradient_ + (query_ / kTileRows + i) * query_sums + k * kTileSums,
                            kTileSums, query_sums};
        add_product({turned_tiles(k), turned_tiles(k + 1)}, {slope_pairs(i), slope_pairs(i + 1)},
                    pairs_, sums, is_first);
      }
  }

  // Stores gradients row by row, as memory likes it, apart from the products.
  __attribute__((noinline)) void store_rows() {
    const View& out = job_.grad_rows;
    const int64_t features = job_.num_features;
    const bool direct = out.dtype == DType::f32 && out.step == 1;
    for (int64_t i = 0; i < count_; ++i) {
      const float* sums = room_.gradient + i / kTileRows * 2 * depth_ * kTileSums +
                          i % kTileRows * kTileRows;
      float* row = direct ? const_cast<float*>(run_at<float>(out, first_ + i, 0, 0)) : room_.rows;
      if (job_.adds_to_rows && !direct) load_floats(out, first_ + i, 0, 0, features, row);
      for (int64_t k = 0; k < features; k += kTileRows) {
        const __mmask16 lanes = lanes_before(features - k);
        V sum = Simd::load(sums + k / kTileRows * kTileSums);
        if (job_.adds_to_rows) sum = Simd::add(_mm512_maskz_loadu_ps(lanes, row + k), sum);
        _mm512_mask_storeu_ps(row + k, lanes, sum);
      }
      if (!direct) store_floats(out, first_ + i, 0, 0, features, row);
    }
  }

  void store_bias() {
    for (int64_t i = 0; i < count_; ++i)
      job_.grad_bias[first_ + i] +=
          _mm512_reduce_add_ps(Simd::load(room_.bias_sums + i * kTileRows));
  }

  const Bf16LossJob& job_;
  const Bf16Shape& shape_;
  const Bf16Room room_;
  double* const sums_;
  float* const gradient_;
  const int64_t first_block_, depth_;  // depth: tiles of features
  int64_t first_ = 0, count_ = 0, pairs_ = 0;  // candidates of the block; pairs of their tiles
  int64_t query_ = 0, columns_ = 0;            // queries whose slopes are held
  int64_t positive_ = 0, last_positive_ = 0;   // positives of these queries, not seen yet
};

template <LossPass pass>
void run_bf16_stripe(const Bf16LossJob& job, int64_t stripe, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  [[maybe_unused]] const Products products;
  Bf16Stripe<pass>(job, stripe, scratch).run();
}

inline void bf16_stripe(const Bf16LossJob& job, int64_t stripe, float* scratch) {
  switch (job.pass) {
    case LossPass::softplus_sums:
      return run_bf16_stripe<LossPass::softplus_sums>(job, stripe, scratch);
    case LossPass::sigmoid_slopes:
      return run_bf16_stripe<LossPass::sigmoid_slopes>(job, stripe, scratch);
    case LossPass::exp_sums: return run_bf16_stripe<LossPass::exp_sums>(job, stripe, scratch);
    case LossPass::softmax_slopes:
      return run_bf16_stripe<LossPass::softmax_slopes>(job, stripe, scratch);
    case LossPass::softplus_sums_sigmoid_slopes:
      return run_bf16_stripe<LossPass::softplus_sums_sigmoid_slopes>(job, stripe, scratch);
    case LossPass::adversarial_sums:
    case LossPass::adversarial_slopes:
    case LossPass::exp_sums_softmax_slopes: return;  // for sampled negatives and kept scores
  }
}

// Adds up the stripes' sums of 16 queries, in their order, and transposes the sums to rows.
inline void finish_bf16_queries(const Bf16LossJob& job, int64_t tile, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const Bf16Shape& shape = job.shape;
  const int64_t floats = shape.features * kTileRows, step = shape.queries * shape.features;
  float* sums = job.stripe_gradients + tile * floats;
  for (int64_t i = 0; i < floats; i += Simd::W) {
    V sum = Simd::load(sums + i);
    for (int64_t stripe = 1; stripe < shape.num_stripes; ++stripe)
      sum = Simd::add(sum, Simd::load(sums + stripe * step + i));
    Simd::store(sums + i, sum);
  }
  for (int64_t k = 0; k < shape.features; k += kTileRows) {
    const float* features[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) features[i] = sums + (k + i) * kTileRows;
    Simd::transpose(features, 0, scratch + k, shape.features);
  }
  const int64_t first = tile * kTileRows, last = std::min(first + kTileRows, job.query.count);
  for (int64_t query = first; query < last; ++query)
    store_floats(job.grad_query, query, 0, 0, job.num_features,
                 scratch + (query - first) * shape.features);
}

}  // namespace
}  // namespace kgfast
