// Sine and cosine as kernels/reference/trig.py defines them, operation by operation in float64: no
// library, nothing fused, so that the last bit is the same everywhere.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "host/load.h"

namespace kgfast {
namespace {

constexpr double kLargestPhase = 0x1p20;

struct CosSin {
  double cosine, sine;
};

template <int N>
inline double horner(double z, const double (&coefficients)[N]) {
  double total = coefficients[0];
  for (int i = 1; i < N; ++i) total = total * z + coefficients[i];
  return total;
}

inline CosSin cos_sin(double x) {
  constexpr double kSine[] = {1.5896909952115501e-10, -2.5050760253406863e-08,
                              2.7557313707070068e-06, -1.984126982985795e-04,
                              8.33333333332249e-03,   -0.16666666666666632};
  constexpr double kCosine[] = {-1.1359647557788195e-11, 2.087572321298175e-09,
                                -2.7557314351390663e-07, 2.480158728947673e-05,
                                -1.388888888887411e-03,  0.0416666666666666};
  constexpr double kWholes = 0x1.8p52;  // adding this rounds to whole numbers, into the lowest bits
  const double shifted = x * 0.6366197723675814 + kWholes;
  const double turns = shifted - kWholes;
  double r = x - turns * 1.5707963267341256;
  r = r - turns * 6.077100506303966e-11;
  r = r - turns * 2.0222662487111665e-21;
  r = std::fabs(x) <= kLargestPhase ? r : std::numeric_limits<double>::quiet_NaN();
  const double z = r * r;
  const double sine = r + (r * z) * horner(z, kSine);
  const double cosine = (1.0 - 0.5 * z) + (z * z) * horner(z, kCosine);
  const int64_t quadrant = static_cast<int64_t>(bit_cast<uint64_t>(shifted) & 3);
  const double real = quadrant & 1 ? sine : cosine, imaginary = quadrant & 1 ? cosine : sine;
  return {(quadrant + 1) & 2 ? -real : real, quadrant & 2 ? -imaginary : imaginary};
}

}  // namespace
}  // namespace kgfast
