// The linear tier of one instruction set behind plain function pointers.
#pragma once
#include "engine/linear_sweep.h"

namespace kgfast {
namespace {

// Measured costs: of products that are one instruction, and of products that are three.
#if defined(__AVX512VNNI__)
constexpr LinearCosts kLinearL1 = {0.09, 12.0, 1.5, 750.0};
constexpr LinearCosts kLinearRotate = {0.06, 4.0, 1.25, 270.0};
#else
constexpr LinearCosts kLinearL1 = {0.25, 12.0, 1.5, 750.0};
constexpr LinearCosts kLinearRotate = {0.17, 4.0, 1.25, 270.0};
#endif

// Calls with the functor and the costs of a score that the tier serves.
template <class F>
inline void with_linear_score(ScoreId id, F&& call) {
  if (id == L1::id) return call(L1{}, kLinearL1);
  if (id == Rotate::id) return call(Rotate{}, kLinearRotate);
}

constexpr LinearTier kLinearTier = {
    Bytes::most,
    [](ScoreId id) {
      LinearCosts found{};
      with_linear_score(id, [&](auto, const LinearCosts& costs) { found = costs; });
      return found;
    },
    [](const SweepJob& job, int64_t panel, LinearWorker& worker) {
      with_linear_score(job.score, [&](auto score, const LinearCosts&) {
        pack_linear_panel<decltype(score)>(job, panel, worker);
      });
    },
    [](const LinearJob& job, int64_t panel, LinearWorker& worker) {
      with_linear_score(job.sweep->score, [&](auto score, const LinearCosts&) {
        sweep_linear_panel<decltype(score)>(job, panel, worker);
      });
    },
    try_linear_panel,
    linear_values,
};

}  // namespace
}  // namespace kgfast
