// The bias of candidates: exact for canonical scores, rounded for the sweep.
#pragma once
#include <cmath>

#include "host/buffer.h"
#include "host/job.h"
#include "host/load.h"

namespace kgfast {
namespace {

class Bias {
 public:
  explicit Bias(const Operands& operands)
      : count_(operands.bias_view.data ? operands.rows.view.count : 0), exact_(count_),
        rounded_(count_) {
    if (count_) load_doubles(operands.bias_view, 0, 0, 0, count_, exact_.data);
    for (int64_t i = 0; i < count_; ++i) {
      const double x = exact_.data[i], size = std::fabs(x);
      rounded_.data[i] = static_cast<float>(x);
      if (i == 0 || !(x <= largest_)) largest_ = std::isnan(largest_) ? largest_ : x;
      if (!(size <= magnitude_)) magnitude_ = std::isnan(magnitude_) ? magnitude_ : size;
    }
  }
  void lend(SweepJob& job) const {
    if (!count_) return;
    job.bias = rounded_.data;
    job.bias_exact = exact_.data;
    job.bias_max = static_cast<float>(largest_);
  }
  double magnitude() const { return magnitude_; }  // the largest |bias|, or 0; NaN if one is

 private:
  const int64_t count_;
  Buffer<double> exact_;
  Buffer<float> rounded_;
  double largest_ = 0.0, magnitude_ = 0.0;
};

}  // namespace
}  // namespace kgfast
