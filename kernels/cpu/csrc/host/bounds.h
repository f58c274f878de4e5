// The error of a float32 sweep against the canonical score.
// docs/explanation/exactness.md derives every line.
#pragma once
#include <cmath>
#include <cstdint>

#include "host/job.h"

namespace kgfast {

// |sweep - canonical distance| <= rel * |distance| + absolute
//                                 + (per_query + per_pair * norm(c)) * norm(q) + per_norm * norm(c)
//                                 + per_shift * norm(q's a) * max |b - origin|
// and for queries that share w and a, with their difference d from a,
//                                 + per_shared * norm(q) + sum |q| |d (b - 1)|^n / n!, n: 2 or 3
struct ErrorBound {
  double rel, absolute, per_query, per_pair, per_norm, per_shift, per_shared;
  Norm norm;  // norm of queries and of candidates; queries of an rscf score have another
};

// `folds`: how many short sums of at most 64 terms are added up.
inline ErrorBound error_bound(const ScoreFacts& facts, int64_t features, int64_t folds,
                              int term_ulps, double sqrt_error, bool rounded_inputs) {
  constexpr double u = 0x1p-24;
  const double d = static_cast<double>(features);
  const double steps = (d < 64.0 ? d : 64.0) + static_cast<double>(folds) + term_ulps;
  const double gamma = steps * u < 0.5 ? steps * u / (1.0 - steps * u) : INFINITY;
  const double canonical = (d + 8.0) * 0x1p-52;
  const double root = std::sqrt(d);
  ErrorBound bound{8.0 * u, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, Norm::none};
  switch (facts.terms) {
    case Terms::products: {
      const double rounding = rounded_inputs ? 3.0 * u : 0.0;
      bound.per_pair = (gamma + rounding + canonical) * (1.0 + 0x1p-10);
      bound.per_query = bound.per_norm = root * 0x1p-125;  // flushed denormals
      bound.absolute = d * 0x1p-124;
      bound.norm = Norm::euclidean;
      return bound;
    }
    case Terms::magnitudes:
      bound.rel += gamma + canonical;
      bound.absolute = d * 0x1p-124;
      break;
    case Terms::squares:
      bound.rel += gamma + canonical;  // an error of the squares; the root halves it
      bound.absolute = root * 0x1p-61;
      break;
    case Terms::moduli:
      bound.rel += (1.0 + sqrt_error) * (1.0 + gamma) - 1.0 + canonical;
      bound.absolute = d * 0x1p-61;
      break;
    case Terms::others:  // no bound is derived: canonical scores decide all pairs
      bound.absolute = INFINITY;
      return bound;
  }
  if (facts.is_rscf) {  // |w c| <= |e| + |q e^{iab}| or |e| + |q| + |a b|
    bound.rel += facts.has_phase ? 16.0 * u : 8.0 * u;
    bound.per_shared = 28.0 * u * (1.0 + bound.rel);
    const double turn = facts.has_phase ? 0x1p-15 + 4.0 * u : 0.0;
    bound.per_query = (turn + 8.0 * u) * (1.0 + bound.rel);
    bound.per_shift = 8.0 * u * (1.0 + bound.rel);
  } else if (rounded_inputs) {
    bound.norm = facts.terms == Terms::squares ? Norm::euclidean : Norm::magnitudes;
    bound.per_query = bound.per_norm = 1.01 * u;
  }
  return bound;
}

}  // namespace kgfast
