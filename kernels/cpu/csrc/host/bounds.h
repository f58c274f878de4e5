// The error of a float32 sweep against the canonical score. docs/exactness.md derives every line.
#pragma once
#include <cmath>
#include <cstdint>

#include "host/job.h"

namespace kgfast {

// |sweep - canonical distance| <= rel * |distance| + absolute
//                                 + (per_query + per_pair * norm(c)) * norm(q) + per_norm * norm(c)
//                                 + per_shift * norm(q's a) * max |b - origin|
struct ErrorBound {
  double rel, absolute, per_query, per_pair, per_norm, per_shift;
  int norm;        // of candidates. 0: none is needed, 1: sum of magnitudes, 2: Euclidean
  int query_norm;  // likewise; 3: that of the rscf scores, see passes.h
};

// `folds`: how many short sums of at most 64 terms are added up.
inline ErrorBound error_bound(ScoreId score, int64_t features, int64_t folds, int term_ulps,
                              double sqrt_error, bool rounded_inputs) {
  constexpr double u = 0x1p-24;
  const double d = static_cast<double>(features);
  const double steps = (d < 64.0 ? d : 64.0) + static_cast<double>(folds) + term_ulps;
  const double gamma = steps * u < 0.5 ? steps * u / (1.0 - steps * u) : INFINITY;
  const double canonical = (d + 8.0) * 0x1p-52;
  const double root = std::sqrt(d);
  ErrorBound bound{8.0 * u, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0};
  switch (score) {
    case ScoreId::dot: {
      const double rounding = rounded_inputs ? 3.0 * u : 0.0;
      bound.per_pair = (gamma + rounding + canonical) * (1.0 + 0x1p-10);
      bound.per_query = bound.per_norm = root * 0x1p-125;  // flushed denormals
      bound.absolute = d * 0x1p-124;
      bound.norm = bound.query_norm = 2;
      return bound;
    }
    case ScoreId::rscf_l1:
    case ScoreId::scaled_l1:
    case ScoreId::l1:
      bound.rel += gamma + canonical;
      bound.absolute = d * 0x1p-124;
      break;
    case ScoreId::rscf_l2:
    case ScoreId::scaled_l2:
    case ScoreId::l2:
      bound.rel += gamma + canonical;  // of the squares; the root halves it
      bound.absolute = root * 0x1p-61;
      break;
    case ScoreId::rscf_rotate:
    case ScoreId::scaled_rotate:
    case ScoreId::rotate:
      bound.rel += (1.0 + sqrt_error) * (1.0 + gamma) - 1.0 + canonical;
      bound.absolute = d * 0x1p-61;
      break;
  }
  if (score >= ScoreId::rscf_rotate) {  // |w c| <= |e| + |q e^{iab}| or |e| + |q| + |a b|
    bound.rel += 8.0 * u;
    const double turn = score == ScoreId::rscf_rotate ? 0x1p-15 + 4.0 * u : 0.0;
    bound.per_query = (turn + 8.0 * u) * (1.0 + bound.rel);
    bound.per_shift = 8.0 * u * (1.0 + bound.rel);
    bound.query_norm = 3;
  } else if (rounded_inputs) {
    bound.norm = bound.query_norm = score == ScoreId::l2 ? 2 : 1;
    bound.per_query = bound.per_norm = 1.01 * u;
  }
  return bound;
}

}  // namespace kgfast
