// A step of Adagrad on some numbers, rounded as torch rounds it: where the machine fuses, products
// are fused into the sums.
#pragma once
#include <algorithm>
#include <cstring>

#include "host/adagrad.h"
#include "scores/common.h"

namespace kgfast {
namespace {

struct AdagradVectors {
  V parameter, sum;
};

inline AdagradVectors adagrad_step(AdagradVectors at, V gradient, const AdagradJob& job) {
  const V decay = Simd::set1(job.weight_decay);
  const V g = job.weight_decay != 0.0f ? Simd::fma(decay, at.parameter, gradient) : gradient;
  const V sum = Simd::fma(g, g, at.sum);
  const V root = Simd::add(Simd::sqrt(sum), Simd::set1(job.eps));
  const V change = Simd::div(Simd::mul(Simd::set1(job.rate), g), root);
  return {Simd::sub(at.parameter, change), sum};
}

inline void adagrad_numbers(const AdagradJob& job, int64_t place, const float* gradient,
                            int64_t count) {
  constexpr int W = Simd::W;
  float *table = job.table + place, *sum = job.sum + place;
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    const AdagradVectors made = adagrad_step({Simd::load(table + i), Simd::load(sum + i)},
                                             Simd::load(gradient + i), job);
    Simd::store(table + i, made.parameter);
    Simd::store(sum + i, made.sum);
  }
  if (i == count) return;
  float lanes[3][W] = {};
  const size_t bytes = sizeof(float) * (count - i);
  std::memcpy(lanes[0], table + i, bytes);
  std::memcpy(lanes[1], sum + i, bytes);
  std::memcpy(lanes[2], gradient + i, bytes);
  const AdagradVectors made = adagrad_step({Simd::load(lanes[0]), Simd::load(lanes[1])},
                                           Simd::load(lanes[2]), job);
  Simd::store(lanes[0], made.parameter);
  Simd::store(lanes[1], made.sum);
  std::memcpy(table + i, lanes[0], bytes);
  std::memcpy(sum + i, lanes[1], bytes);
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
