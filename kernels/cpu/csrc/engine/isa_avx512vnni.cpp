// Compiled with -mavx512vnni where the target is x86-64 and the compiler knows it, empty elsewhere;
// machine.cpp probes the machine before it calls in here.
#include "host/linear.h"
#include "host/tiers.h"

#if defined(__AVX512VNNI__)
#include "simd/avx512.h"

#include "engine/linear_sweep.h"

namespace kgfast {
namespace {

// Calls with the functor of a score that the tier serves, and what it costs.
template <class F>
inline void with_linear_score(ScoreId id, F&& call) {
  if (id == L1::id) return call(L1{}, LinearCosts{0.09, 12.0, 1.5, 750.0});
  if (id == Rotate::id) return call(Rotate{}, LinearCosts{0.06, 4.0, 1.25, 270.0});
}

}  // namespace

const LinearTier* avx512vnni_tier() {
  static const LinearTier tier = {
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
  return &tier;
}

}  // namespace kgfast
#else
namespace kgfast {
const LinearTier* avx512vnni_tier() { return nullptr; }
}  // namespace kgfast
#endif
