// The scores of the half-precision sweep: sums of a chain of terms in float16, whose operands are
// at most `limit`, so that nothing overflows. Roundings: docs/explanation/exactness.md.
#pragma once
#include "host/half.h"
#include "scores/scores.h"
#include "simd/avx512fp16.h"

namespace kgfast {
namespace {

// 3 instructions. `Wide` is the float32 functor, which sums what is left open.
struct HalfL1 {
  using Wide = L1;
  static constexpr float limit = 90.0f;
  static constexpr HalfCosts costs = {0.63, 4.0, 1.5, 750.0};
  static H first(const H* q, const H* c) { return Half16::abs(Half16::sub(q[0], c[0])); }
  static H next(H sum, const H* q, const H* c) { return Half16::add(sum, first(q, c)); }
};

// 2 instructions. 16 (2 limit)^2 <= 65504.
struct HalfL2 {
  using Wide = L2;
  static constexpr float limit = 31.5f;
  static constexpr HalfCosts costs = {0.68, 4.0, 2.1, 1000.0};
  static H first(const H* q, const H* c) {
    const H x = Half16::sub(q[0], c[0]);
    return Half16::mul(x, x);
  }
  static H next(H sum, const H* q, const H* c) {
    const H x = Half16::sub(q[0], c[0]);
    return Half16::fma(x, x, sum);
  }
};

// 6 instructions. 2 (2 limit)^2 <= 65504.
struct HalfRotate {
  using Wide = Rotate;
  static constexpr float limit = 90.0f;
  static constexpr HalfCosts costs = {0.53, 3.0, 1.25, 270.0};
  static H square(const H* q, const H* c) {  // plus the smallest number: no root of zero
    const H x = Half16::sub(q[0], c[0]), y = Half16::sub(q[1], c[1]);
    return Half16::fma(x, x, Half16::fma(y, y, Half16::smallest()));
  }
  static H first(const H* q, const H* c) {
    const H t = square(q, c);
    return Half16::mul(t, Half16::rsqrt(t));
  }
  static H next(H sum, const H* q, const H* c) {
    const H t = square(q, c);
    return Half16::fma(t, Half16::rsqrt(t), sum);
  }
};

// Calls with the functor of a score that the sweep serves.
template <class F>
inline void with_half_score(ScoreId id, F&& call) {
  if (id == L1::id) return call(HalfL1{});
  if (id == L2::id) return call(HalfL2{});
  if (id == Rotate::id) return call(HalfRotate{});
}

}  // namespace
}  // namespace kgfast
