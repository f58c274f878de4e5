// Softplus, sigmoid and softmax over one row of scores, in place; and a step of Adagrad.
//
// Cost model, per vector: exp is 11 instructions, log1p 9 and a division, sigmoid exp and a
// division: about 30 cycles for softplus and 25 for the others. An adversarial weight is one exp
// more.
//
// Errors: exp and log1p at most 3 units in the last place. Sums of 64 terms in a lane, then
// float64.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>

#include "host/fpmode.h"
#include "host/training.h"
#include "scores/common.h"

namespace kgfast {
namespace {

constexpr int64_t kLossBlock = 64 * Simd::W;

// Returns exp(y): 2^n exp(r), |r| <= ln(2) / 2, exp(r) by its series to r^7; 0 below -88.03.
inline V exp(V y) {
  const V magic = Simd::set1(0x1.8p23f);  // adding this rounds to whole numbers
  const V bounded = Simd::max(Simd::set1(-88.03f), y);
  const V n = Simd::sub(Simd::fma(bounded, Simd::set1(0x1.715476p0f), magic), magic);
  V r = Simd::minus_product(n, Simd::set1(0x1.62e4p-1f), bounded);  // exact: 13 bits
  r = Simd::minus_product(n, Simd::set1(0x1.7f7d1cp-20f), r);
  V p = Simd::set1(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = Simd::fma(p, r, Simd::set1(c));
  return Simd::mul(p, Simd::power_of_two(n));
}

// Returns log(1 + t), t in [0, 1]: 2 artanh(s), s = t / (2 + t) <= 1/3, by its series to s^15.
inline V log1p(V t) {
  const V s = Simd::div(t, Simd::add(t, Simd::set1(2.0f))), square = Simd::mul(s, s);
  V p = Simd::set1(2.0f / 15);
  for (const float c : {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f})
    p = Simd::fma(p, square, Simd::set1(c));
  return Simd::mul(s, p);
}

// Returns exp(-|x|), which softplus and sigmoid share.
inline V exp_below(V x) { return exp(Simd::sub(Simd::zero(), Simd::abs(x))); }

inline V softplus_by(V x, V t) { return Simd::add(Simd::max(Simd::zero(), x), log1p(t)); }

inline V sigmoid_by(V x, V t) {
  const V one = Simd::set1(1.0f);
  return Simd::div(Simd::where_negative(x, t, one), Simd::add(one, t));
}

inline V softplus(V x) { return softplus_by(x, exp_below(x)); }
inline V sigmoid(V x) { return sigmoid_by(x, exp_below(x)); }

// Calls each(vector, valid lanes, index) for a row; zeros fill up the last vector.
template <class Each>
inline void for_each_vector(const float* x, int64_t count, Each each) {
  int64_t i = 0;
  for (; i + Simd::W <= count; i += Simd::W) each(Simd::load(x + i), int{Simd::W}, i);
  if (i < count) each(load_lanes(x + i, count - i), static_cast<int>(count - i), i);
}

// Sets x = f(x) for a whole row.
template <class F>
inline void map_row(float* x, int64_t count, F f) {
  for_each_vector(x, count,
                  [&](V v, int valid, int64_t i) { store_lanes(x + i, f(v), valid); });
}

inline double sum_lanes(V sums, int valid) {
  float lanes[Simd::W];
  Simd::store(lanes, sums);
  double total = 0.0;
  for (int i = 0; i < valid; ++i) total += lanes[i];
  return total;
}

// Adds to two sums the terms that terms(vector, valid lanes, index) returns for each vector.
template <class Terms>
inline void sum_terms(const float* x, int64_t count, double* first, double* second, Terms terms) {
  for (int64_t block = 0; block < count; block += kLossBlock) {
    V a = Simd::zero(), b = Simd::zero();
    for_each_vector(x + block, std::min(kLossBlock, count - block),
                    [&](V v, int valid, int64_t i) {
                      const auto [f, g] = terms(v, valid, block + i);
                      if (valid == Simd::W) {
                        a = Simd::add(a, f);
                        b = Simd::add(b, g);
                        return;
                      }
                      *first += sum_lanes(f, valid);
                      *second += sum_lanes(g, valid);
                    });
    *first += sum_lanes(a, Simd::W);
    *second += sum_lanes(b, Simd::W);
  }
}

inline float highest_of_row(const float* x, int64_t count) {
  V high = Simd::set1(-INFINITY);
  float lanes[Simd::W], highest = -INFINITY;
  int64_t i = 0;
  for (; i + Simd::W <= count; i += Simd::W) high = Simd::max(high, Simd::load(x + i));
  Simd::store(lanes, high);
  for (const float lane : lanes) highest = std::max(highest, lane);
  for (; i < count; ++i) highest = std::max(highest, x[i]);
  return highest;
}

// Updates the highest score and the sum of exponentials below it, which may replace the scores. A
// NaN reaches the sum alone.
template <bool replaces>
inline void sum_exponentials(float* x, int64_t count, double* peak, double* mass, double* linear) {
  const double highest = std::max<double>(*peak, highest_of_row(x, count));
  if (highest > *peak) *mass *= std::exp(*peak - highest);
  *peak = highest;
  const V shift = Simd::set1(static_cast<float>(highest));  // exact: it is a score
  *linear += static_cast<double>(count) * highest;  // differences lose less in float32 sums
  sum_terms(x, count, mass, linear, [&](V v, int valid, int64_t i) {
    const V below = Simd::sub(v, shift), e = exp(below);
    if (replaces) store_lanes(x + i, e, valid);
    return std::pair<V, V>(e, below);
  });
}

// Adds the sums of a row, and writes the slopes in its place.
inline void sum_and_slope(float* x, int64_t count, double* plus, double* linear, V scale,
                          V constant) {
  sum_terms(x, count, plus, linear, [&](V v, int valid, int64_t i) {
    const V t = exp_below(v);
    store_lanes(x + i, Simd::mul(scale, Simd::sub(sigmoid_by(v, t), constant)), valid);
    return std::pair<V, V>(softplus_by(v, t), v);
  });
}

// Weights by softmax of alpha x, not yet divided by their sum.
struct Adversarial {
  V alpha, shift;
  V weight(V v) const {  // 0 for -inf
    const V weight = exp(Simd::mul(alpha, Simd::sub(v, shift)));
    return Simd::where_negative(Simd::add(v, Simd::set1(FLT_MAX)), Simd::zero(), weight);
  }
};

inline void sum_adversarial(const float* x, int64_t count, float alpha, double* peak,
                            double* mass, double* total) {
  const float highest = highest_of_row(x, count);
  const Adversarial by{Simd::set1(alpha), Simd::set1(highest)};
  *peak = highest;
  sum_terms(x, count, mass, total, [&](V v, int, int64_t) {
    const V weight = by.weight(v);
    return std::pair<V, V>(weight, Simd::mul(weight, softplus(v)));
  });
}

inline void run_loss_row(LossPass pass, const LossTile& tile, int64_t row) {
  const FloatMode mode(FloatMode::kFlush);
  float* x = tile.scores + row * tile.columns;
  switch (pass) {
    case LossPass::exp_sums:
      return sum_exponentials<false>(x, tile.columns, tile.a + row, tile.b + row, tile.c + row);
    case LossPass::softmax_slopes: {
      const V scale = Simd::set1(tile.scale[row]), shift = Simd::set1(tile.shift[row]);
      const V share = Simd::set1(tile.share[row]);
      return map_row(x, tile.columns, [&](V v) {
        return Simd::sub(Simd::mul(scale, exp(Simd::sub(v, shift))), share);
      });
    }
    case LossPass::softplus_sums_sigmoid_slopes:
      return sum_and_slope(x, tile.columns, tile.a + row, tile.b + row,
                           Simd::set1(tile.scale[row]), Simd::set1(tile.constant));
    case LossPass::exp_sums_softmax_slopes: {  // three walks over a row in the cache
      sum_exponentials<true>(x, tile.columns, tile.a + row, tile.b + row, tile.c + row);
      const V scale = Simd::set1(static_cast<float>(tile.scale[row] / tile.b[row]));
      const V share = Simd::set1(tile.share[row]);
      return map_row(x, tile.columns, [&](V e) { return Simd::sub(Simd::mul(scale, e), share); });
    }
    case LossPass::adversarial_sums:
      return sum_adversarial(x, tile.columns, tile.constant, tile.a + row, tile.b + row,
                             tile.c + row);
    case LossPass::adversarial_slopes: {
      const Adversarial by{Simd::set1(tile.constant), Simd::set1(tile.shift[row])};
      const V scale = Simd::set1(tile.scale[row]);
      return map_row(x, tile.columns, [&](V v) {
        return Simd::mul(Simd::mul(scale, by.weight(v)), sigmoid(v));
      });
    }
  }
}

// A step of Adagrad on W numbers, rounded as torch rounds it: where the machine fuses, products are
// fused into the sums.
inline void adagrad_step(const AdagradJob& job, float* table, float* sums, const float* gradient) {
  const V parameter = Simd::load(table), slope = Simd::load(gradient);
  const V decay = Simd::set1(job.weight_decay);
  const V g = job.weight_decay != 0.0f ? Simd::fma(decay, parameter, slope) : slope;
  const V sum = Simd::fma(g, g, Simd::load(sums));
  const V root = Simd::add(Simd::sqrt(sum), Simd::set1(job.eps));
  const V change = Simd::div(Simd::mul(Simd::set1(job.rate), g), root);
  Simd::store(table, Simd::sub(parameter, change));
  Simd::store(sums, sum);
}

inline void adagrad_numbers(const AdagradJob& job, int64_t place, const float* gradient,
                            int64_t count) {
  constexpr int W = Simd::W;
  float *table = job.table + place, *sums = job.sum + place, lanes[3][W] = {};
  int64_t i = 0;
  for (; i + W <= count; i += W) adagrad_step(job, table + i, sums + i, gradient + i);
  if (i == count) return;
  const size_t bytes = sizeof(float) * (count - i);
  std::memcpy(lanes[0], table + i, bytes);
  std::memcpy(lanes[1], sums + i, bytes);
  std::memcpy(lanes[2], gradient + i, bytes);
  adagrad_step(job, lanes[0], lanes[1], lanes[2]);
  std::memcpy(table + i, lanes[0], bytes);
  std::memcpy(sums + i, lanes[1], bytes);
}

// Updates numbers first .. last - 1; a part may begin and end within a row.
inline void adagrad_part(const AdagradJob& job, int64_t first, int64_t last) {
  while (first < last) {
    const int64_t row = first / job.width, column = first % job.width;
    const int64_t count = std::min(last - first, job.width - column);
    const int64_t id = job.ids == nullptr ? row : job.ids[row];
    adagrad_numbers(job, id * job.width + column, job.gradient + first, count);
    first += count;
  }
}

}  // namespace
}  // namespace kgfast
