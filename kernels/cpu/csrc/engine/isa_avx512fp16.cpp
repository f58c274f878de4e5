// Compiled with -mavx512fp16 where the target is x86-64 and the compiler knows it, empty elsewhere;
// machine.cpp probes the machine before it reads the table.
#include "host/half.h"
#include "host/tiers.h"

#if defined(__AVX512FP16__)
#include "simd/avx512.h"

#include "engine/half_sweep.h"

namespace kgfast {

constexpr HalfTier table = {
    [](ScoreId id) {
      HalfFacts facts{};
      with_half_score(id, [&](auto score) {
        facts = {decltype(score)::limit, decltype(score)::costs};
      });
      return facts;
    },
    [](const SweepJob& job, float scale, int64_t panel, const HalfPanels& out, Worker& worker) {
      with_half_score(job.score, [&](auto score) {
        pack_half_panel<decltype(score)>(job, scale, panel, out, worker);
      });
    },
    [](const SweepJob& job, float scale, uint32_t* out, float* errors) {
      with_half_score(job.score, [&](auto score) {
        pack_half_queries<decltype(score)>(job, scale, out, errors);
      });
    },
    [](const HalfJob& job, int64_t panel, HalfWorker& worker) {
      with_half_score(job.sweep->score, [&](auto score) {
        sweep_half_panel<decltype(score)>(job, panel, worker);
      });
    },
    [](const HalfJob& job, HalfWorker& worker, float* out) {
      with_half_score(job.sweep->score,
                      [&](auto score) { half_values<decltype(score)>(job, worker, out); });
    },
};
constexpr const HalfTier* avx512fp16_tier = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const HalfTier* avx512fp16_tier = nullptr;
}  // namespace kgfast
#endif
