// A step of Adagrad on some numbers, rounded as torch rounds it: where the machine fuses, products
// are fused into the sums.
#pragma once
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

inline void adagrad_part(const AdagradJob& job, int64_t first, int64_t last) {
  constexpr int W = Simd::W;
  int64_t i = first;
  for (; i + W <= last; i += W) {
    const AdagradVectors made =
        adagrad_step({Simd::load(job.parameter + i), Simd::load(job.sum + i)},
                     Simd::load(job.gradient + i), job);
    Simd::store(job.parameter + i, made.parameter);
    Simd::store(job.sum + i, made.sum);
  }
  if (i == last) return;
  float lanes[3][W] = {};
  const size_t bytes = sizeof(float) * (last - i);
  std::memcpy(lanes[0], job.parameter + i, bytes);
  std::memcpy(lanes[1], job.sum + i, bytes);
  std::memcpy(lanes[2], job.gradient + i, bytes);
  const AdagradVectors made = adagrad_step({Simd::load(lanes[0]), Simd::load(lanes[1])},
                                           Simd::load(lanes[2]), job);
  Simd::store(lanes[0], made.parameter);
  Simd::store(lanes[1], made.sum);
  std::memcpy(job.parameter + i, lanes[0], bytes);
  std::memcpy(job.sum + i, lanes[1], bytes);
}

}  // namespace
}  // namespace kgfast
