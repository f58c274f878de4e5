// Blocks of candidates with all queries: scores, the rows' loss and its slopes, and both gradients,
// as products of bf16 numbers by AMX.
//
// Cost model: 32 x 32 scores of 32 features are 4 tile products of 16 cycles and 4 tile loads; so
// are the gradients of 32 rows, 32 features and 32 terms, whose sums are loaded and stored once for a
// block. Of 16 slopes of softmax 11 instructions, and 5 for every 32, which are rounded and stored as
// the left side of one product and the right side of the other. Scores are not kept: they are made
// again in less time than 8 bytes of each take to memory and back. What a tile of scores still asks
// for is done between the products of the next. Measured at 500 queries, 14,541 candidates and 256
// features: 4 ms for sums, 13 for slopes and both gradients, where their products alone, from the
// second cache, take 2 and 6.
//
// Errors: float32 sums; exponentials 2.5 units of 2^-24, their arguments one more of each.
#pragma once
#include <cfloat>

#include "engine/bf16_pack.h"
#include "engine/loss_row.h"
#include "engine/tiles.h"

namespace kgfast {
namespace {

// Two tiles; those of the next terms follow each.
struct TilesOf {
  const uint16_t *first, *second;
  TilesOf at(int64_t k) const { return {first + k * kTileNumbers, second + k * kTileNumbers}; }
};

inline void add_tiles(TilesOf left, TilesOf right) {
  _tile_loadd(4, left.first, 64);
  _tile_loadd(6, right.first, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right.second, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, left.second, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Where 2 x 2 tiles of sums stand: so many floats from one on the left to the next, and likewise on
// the right.
struct SumTiles {
  float* sums;
  int64_t left, right;

  static void clear() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  void load() const {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + right, 64);
    _tile_loadd(2, sums + left, 64);
    _tile_loadd(3, sums + left + right, 64);
  }
  void store() const {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + right, 64);
    _tile_stored(2, sums + left, 64);
    _tile_stored(3, sums + left + right, 64);
  }
};

inline void add_product(TilesOf left, TilesOf right, int64_t depth, const SumTiles& sums,
                        bool is_first) {
  is_first ? SumTiles::clear() : sums.load();
  for (int64_t k = 0; k < depth; ++k) add_tiles(left.at(k), right.at(k));
  sums.store();
}

// What a worker holds.
struct Bf16Room {
  uint16_t *left;      // [block / 16][features / 32] tiles of candidates, for scores
  uint16_t *turned;    // [features / 16][block / 32] tiles of them, for the queries' gradient
  uint16_t *by_rows;   // [block / 16][columns / 32] tiles of slopes
  uint16_t *by_pairs;  // [columns / 16][block / 32] tiles of the same
  float* gradient;     // [block / 16][features / 16] tiles of sums
  float* scores;       // [2][4] tiles of sums
  float* bias;         // [block]
  float* bias_sums;    // [block][16]
  float* shifts;       // [queries]: what exponentials of scores are relative to
  float* rows;         // [32][features]
  int64_t floats;

  Bf16Room(const Bf16Shape& shape, float* scratch) : floats(0) {
    const auto take = [&](int64_t count) {
      float* from = scratch + floats;
      floats += count;
      return from;
    };
    const auto numbers = [&](int64_t count) { return reinterpret_cast<uint16_t*>(take(count / 2)); };
    left = numbers(shape.block * shape.features);
    turned = numbers(shape.block * shape.features);
    by_rows = numbers(shape.block * shape.columns);
    by_pairs = numbers(shape.block * shape.columns);
    gradient = take(shape.block * shape.features);
    scores = take(8 * kTileSums);
    bias = take(shape.block);
    bias_sums = take(shape.block * kTileRows);
    shifts = take(shape.queries);
    rows = take(kTilePair * shape.features);
  }
};

inline int64_t bf16_scratch(const Bf16LossJob& job) { return Bf16Room(job.shape, nullptr).floats; }

// 32 candidates with 32 queries.
struct ScorePair {
  const float* scores;  // [2 of queries][2 of candidates] tiles of sums
  const float* bias;    // [32]
  int64_t valid;        // candidates, of at most 32
  int64_t query;        // the first

  V at(int64_t row, int64_t half) const {
    return Simd::add(Simd::load(scores + half * 2 * kTileSums + row * Simd::W),
                     Simd::set1(bias[row]));
  }
};

// Where their slopes go.
struct SlopePair {
  uint16_t* rows[2];   // tiles by_rows
  uint16_t* pairs[2];  // tiles by_pairs
  float* bias_sums;    // [32][16], or nullptr

  void store(int64_t row, const V (&slopes)[2][2]) const {
    uint16_t* out = rows[row / kTileRows] + row % kTileRows * kTilePair;
    for (int i = 0; i < 2; ++i) {
      _mm512_store_si512(out + i * kTilePair, rounded(slopes[i][0], slopes[i][1]));
      _mm512_store_si512(pairs[i] + row / 2 * kTilePair,
                         rounded_pairs(slopes[0][i], slopes[1][i]));
      if (!bias_sums) continue;
      float* sums = bias_sums + (row + i) * kTileRows;
      Simd::store(sums, Simd::add(Simd::load(sums), Simd::add(slopes[i][0], slopes[i][1])));
    }
  }

  // Takes `share` from the slope of one pair, whose slopes of 16 queries are given.
  void take(int64_t row, int64_t lane, V slopes, float share) const {
    alignas(32) uint16_t numbers[16];
    const int64_t half = lane / kTileRows, place = lane % kTileRows;
    const V less = _mm512_mask_sub_ps(slopes, static_cast<__mmask16>(1u << place), slopes,
                                      Simd::set1(share));
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers),
                       reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(less)));
    rows[row / kTileRows][row % kTileRows * kTilePair + lane] = numbers[place];
    pairs[half][row / 2 * kTilePair + 2 * place + row % 2] = numbers[place];
    if (bias_sums) bias_sums[row * kTileRows + place] -= share;
  }
};

constexpr bool has_sums(LossPass pass) {
  return pass == LossPass::exp_sums || pass == LossPass::softplus_sums ||
         pass == LossPass::softplus_sums_sigmoid_slopes;
}
constexpr bool has_slopes(LossPass pass) {
  return pass == LossPass::softmax_slopes || pass == LossPass::sigmoid_slopes ||
         pass == LossPass::softplus_sums_sigmoid_slopes;
}

inline void add_doubles(double* sums, V terms) {
  const __m256 low = _mm512_castps512_ps256(terms), high = _mm512_extractf32x8_ps(terms, 1);
  _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), _mm512_cvtps_pd(low)));
  _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), _mm512_cvtps_pd(high)));
}

inline void scale_doubles(double* sums, V factors) {
  const __m256 low = _mm512_castps512_ps256(factors), high = _mm512_extractf32x8_ps(factors, 1);
  _mm512_storeu_pd(sums, _mm512_mul_pd(_mm512_loadu_pd(sums), _mm512_cvtps_pd(low)));
  _mm512_storeu_pd(sums + 8, _mm512_mul_pd(_mm512_loadu_pd(sums + 8), _mm512_cvtps_pd(high)));
}

constexpr float kLog2E = 0x1.715476p0f;

// 2^t but for 2.5 units of 2^-24: a polynomial of degree 5 on [0, 1), of the least largest relative
// error, 7.5e-8. Beyond the range 0 or infinity.
inline V power_of_two(V t) {
  const V f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // t - floor(t)
  V p = Simd::set1(0.00187757667f);
  for (const float c : {0.00898934009f, 0.0558263181f, 0.240153617f, 0.693153073f, 0.999999925f})
    p = Simd::fma(p, f, Simd::set1(c));
  return _mm512_scalef_ps(p, t);
}

// log(1 + t) for t in [0, 1]: t times a polynomial of degree 8, likewise, 3.0e-8.
inline V log_above_one(V t) {
  V p = Simd::set1(0.00523269426f);
  for (const float c : {-0.0295052388f, 0.0782259519f, -0.136632458f, 0.191060068f, -0.248429822f,
                        0.333190968f, -0.499994931f, 0.99999997f})
    p = Simd::fma(p, t, Simd::set1(c));
  return Simd::mul(p, t);
}

// What softplus and sigmoid have in common: exp(-|x|).
inline V power_below(V x) { return power_of_two(Simd::mul(Simd::abs(x), Simd::set1(-kLog2E))); }

inline V softplus_of(V x, V t) { return Simd::add(Simd::max(Simd::zero(), x), log_above_one(t)); }

inline V sigmoid_of(V x, V t) {
  const V one = Simd::set1(1.0f), sum = Simd::add(one, t);
  const V near = _mm512_rcp14_ps(sum);  // one Newton step: 2^-28
  const V inverse = Simd::mul(near, Simd::minus_product(sum, near, Simd::set1(2.0f)));
  return Simd::mul(Simd::where_negative(x, t, one), inverse);
}

constexpr int64_t kWalkRows = 4;  // that are walked over together: constants stay in registers

// What a loss makes of the scores of one ScorePair, some rows at a time: a lane is a query.
template <LossPass pass>
class LaneWalk {
 public:
  // `shifts`, and `second` and `third` of sums, of the queries of the pair.
  LaneWalk(const Bf16LossJob& job, const ScorePair& pair, float* shifts, double* second,
           double* third)
      : pair_(pair), shifts_(shifts), second_(second), third_(third) {
    const int64_t step = job.shape.queries;
    for (int half = 0; half < 2; ++half) {
      const float* lanes = job.lanes + pair.query + half * kTileRows;
      const float* of_sums = shifts + half * kTileRows;
      shift_to(half, Simd::load(pass == LossPass::exp_sums ? of_sums : lanes));
      scale_[half] = Simd::load(lanes + step);
      minus_share_[half] = Simd::sub(Simd::zero(), Simd::load(lanes + 2 * step));
    }
    constant_ = Simd::set1(job.constant);
  }

  // kWalkRows of them from `row` on.
  void rows(int64_t row, const SlopePair& out) {
    if (row + kWalkRows <= pair_.valid)
      some_rows<true>(row, out);
    else
      some_rows<false>(row, out);
  }

  void finish() {
    if constexpr (pass == LossPass::exp_sums) raise_shifts();
    if constexpr (has_sums(pass))
      for (int half = 0; half < 2; ++half) {
        add_doubles(second_ + half * kTileRows, terms_[half]);
        add_doubles(third_ + half * kTileRows, linear_[half]);
      }
  }

  V slope(V x, int half) const {
    if constexpr (pass == LossPass::softmax_slopes)
      return Simd::fma(scale_[half], exponential(x, half), minus_share_[half]);
    return slope_by(x, power_below(x), half);
  }

 private:
  template <bool whole>
  void some_rows(int64_t row, const SlopePair& out) {
    for (int64_t end = row + kWalkRows; row < end; row += 2) {
      V slopes[2][2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          slopes[i][half] = Simd::zero();
          if (whole || row + i < pair_.valid)
            slopes[i][half] = see(pair_.at(row + i, half), half);
        }
      if constexpr (has_slopes(pass)) out.store(row, slopes);
    }
  }

  // Adds a score to the sums, and returns its slope.
  V see(V x, int half) {
    if constexpr (pass == LossPass::softmax_slopes) return slope(x, half);
    if constexpr (pass == LossPass::exp_sums) {
      highest_[half] = Simd::max(highest_[half], x);
      add(exponential(x, half), x, half);
      return x;
    }
    const V t = power_below(x);
    if constexpr (has_sums(pass)) add(softplus_of(x, t), x, half);
    return slope_by(x, t, half);
  }

  void add(V term, V x, int half) {
    terms_[half] = Simd::add(terms_[half], term);
    linear_[half] = Simd::add(linear_[half], x);
  }

  V slope_by(V x, V t, int half) const {
    return Simd::mul(scale_[half], Simd::sub(sigmoid_of(x, t), constant_));
  }

  V exponential(V x, int half) const {  // exp(x - shift)
    return power_of_two(Simd::fma(x, Simd::set1(kLog2E), minus_shift_[half]));
  }

  void shift_to(int half, V shift) {
    shift_[half] = shift;
    minus_shift_[half] = Simd::mul(shift, Simd::set1(-kLog2E));
  }

  // Where a score is far above what it was compared with, the sums of the pair are made again; so
  // are those of the first.
  void raise_shifts() {
    for (int half = 0; half < 2; ++half) {
      const V before = shift_[half], most = Simd::add(before, Simd::set1(kMostAbove));
      if (!Simd::less(most, highest_[half])) continue;
      const V shift = Simd::max(before, highest_[half]);
      shift_to(half, shift);
      scale_doubles(second_ + half * kTileRows, exponential(before, half));
      Simd::store(shifts_ + half * kTileRows, shift);
      terms_[half] = linear_[half] = Simd::zero();
      for (int64_t row = 0; row < pair_.valid; ++row) {
        const V x = pair_.at(row, half);
        add(exponential(x, half), x, half);
      }
    }
  }

  static constexpr float kMostAbove = 32.0f;

  const ScorePair& pair_;  // a copy would wait for the stores of sums before it
  float* const shifts_;
  double *const second_, *const third_;
  V shift_[2], minus_shift_[2], scale_[2], minus_share_[2], constant_;
  V highest_[2] = {Simd::set1(-FLT_MAX), Simd::set1(-FLT_MAX)};
  V terms_[2] = {Simd::zero(), Simd::zero()}, linear_[2] = {Simd::zero(), Simd::zero()};
};

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
    std::fill_n(room_.shifts, shape_.queries, -FLT_MAX / 2);  // its exponent is in range
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

  // Scores pair by pair: all candidates of 32 queries, then the next.
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
        multiply(n, sums, [](int64_t) {});
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
        multiply(n, sums, [&](int64_t) {  // evenly: after each of `depth_` products
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
    SumTiles::clear();
    for (int64_t k = 0; k < depth_; ++k) {
      add_tiles(TilesOf{left, left + step}.at(k), TilesOf{right, right + step}.at(k));
      between(k);
    }
    sums.store();
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
      if (candidate >= kTilePair || lane >= kTilePair) return;  // of a later pair
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
    const int64_t row_sums = 2 * depth_ * kTileSums;  // of 16 candidates
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
    const int64_t query_sums = shape_.features * kTileRows;  // of 16 queries
    for (int64_t i = 0; i < columns_ / kTileRows; i += 2)
      for (int64_t k = 0; k < 2 * depth_; k += 2) {
        const SumTiles sums{gradient_ + (query_ / kTileRows + i) * query_sums + k * kTileSums,
                            kTileSums, query_sums};
        add_product({turned_tiles(k), turned_tiles(k + 1)}, {slope_pairs(i), slope_pairs(i + 1)},
                    pairs_, sums, is_first);
      }
  }

  // Apart from the products: row by row, as memory likes it.
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
  int64_t first_ = 0, count_ = 0, pairs_ = 0;  // candidates of the block, and pairs of tiles of them
  int64_t query_ = 0, columns_ = 0;            // queries whose slopes are held
  int64_t positive_ = 0, last_positive_ = 0;   // of these, those that were not seen yet
};

template <LossPass pass>
void run_bf16_stripe(const Bf16LossJob& job, int64_t stripe, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  const Tiles tiles;
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
    case LossPass::exp_sums_softmax_slopes: return;  // of sampled negatives, and of kept scores
  }
}

// Of 16 queries: the stripes' sums, in their order, turned back to rows.
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
