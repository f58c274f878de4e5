// Terms of a loss over 32 x 32 scores: their sums, and their slopes as bf16 tiles.
//
// Cost model: 16 slopes of softmax take 12 instructions. Each 32 slopes take 5 more, which round
// them and store both sides: the left of one product, the right of the other.
//
// Errors: those of bf16_terms.h, then of float32 sums of a lane's 32 terms, then of float64 sums.
#pragma once
#include <cfloat>

#include "engine/bf16_pack.h"
#include "engine/bf16_terms.h"

namespace kgfast {
namespace {

// 32 candidates with 32 queries.
struct ScorePair {
  const float* scores;  // [2 of queries][2 of candidates] tiles of sums
  const float* bias;    // [32]
  int64_t valid;        // candidates, of at most 32
  int64_t query;        // first query

  V at(int64_t row, int64_t half) const {
    return Simd::add(Simd::load(scores + half * 2 * kTileSums + row * Simd::W),
                     Simd::set1(bias[row]));
  }
};

// Places of the slopes.
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

  // Subtracts `share` from the slope of one pair; `slopes` are those of the row and 16 queries.
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

constexpr int64_t kWalkRows = 4;  // rows of a walk: constants stay in registers

// Walk of a loss over the scores of one ScorePair, some rows at a time; a lane is a query.
template <LossPass pass>
class LaneWalk {
 public:
  // Takes the shifts of the pair's queries, and their second and third sums.
  LaneWalk(const Bf16LossJob& job, const ScorePair& pair, float* shifts, double* second,
           double* third)
      : pair_(pair), shifts_(shifts), second_(second), third_(third) {
    const int64_t step = job.shape.queries;
    for (int half = 0; half < 2; ++half) {
      const float* lanes = job.lanes + pair.query + half * kTileRows;
      const float* of_sums = shifts + half * kTileRows;
      shift_[half] = Simd::load(pass == LossPass::exp_sums ? of_sums : lanes);
      scale_[half] = Simd::load(lanes + step);
      minus_share_[half] = Simd::sub(Simd::zero(), Simd::load(lanes + 2 * step));
    }
    constant_ = Simd::set1(job.constant);
  }

  // Walks kWalkRows rows from `row` on.
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

  // Returns exp(x - shift). The difference is exact where it matters, however large x and shift.
  V exponential(V x, int half) const {
    return power_of_two(Simd::mul(Simd::sub(x, shift_[half]), Simd::set1(kLog2E)));
  }

  // Computes the sums of a pair again if a score is far above its shift, as in the first pair.
  void raise_shifts() {
    for (int half = 0; half < 2; ++half) {
      const V before = shift_[half], most = Simd::add(before, Simd::set1(kMostAbove));
      if (!Simd::less(most, highest_[half])) continue;
      const V shift = shift_[half] = Simd::max(before, highest_[half]);
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
  V shift_[2], scale_[2], minus_share_[2], constant_;
  V highest_[2] = {Simd::set1(-FLT_MAX), Simd::set1(-FLT_MAX)};
  V terms_[2] = {Simd::zero(), Simd::zero()}, linear_[2] = {Simd::zero(), Simd::zero()};
};

}  // namespace
}  // namespace kgfast
