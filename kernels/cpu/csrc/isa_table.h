// One instruction set's kernels behind plain function pointers, with two entries more than ranking
// needs: the sweep's own values, for the test of the bound, and the bare register loop, the roof.
#pragma once
#include "counting.h"
#include "indexed_rows.h"
#include "loss_row.h"
#include "pairwise_sweep.h"
#include "pull.h"
#include "sweep.h"
#include "topk_sweep.h"

namespace kgfast {
namespace {

// Distances of one panel as the sweep computes them, [Q][lanes]; features in one block.
template <class Score>
void sweep_values(const SweepJob& job, int64_t panel, Worker& worker, float* out, float* norm) {
  constexpr int L = lanes_of<Score>(), T = Score::tile_queries;
  const PanelFacts facts = panel_facts<Score>(job, panel);
  alignas(64) float lane_norm[kMaxLanes] = {};
  float limits[T];
  for (float& limit : limits) limit = FLT_MAX;
  pack_panel<Score>(job, facts.first, facts.valid, 0, job.num_features, worker, lane_norm);
  *norm = panel_norm<Score>(job, lane_norm);
  const FloatMode mode(FloatMode::kFlush);
  for (int64_t position = 0; position < job.num_queries; position += T) {
    V totals[T][Score::vectors];
    for (auto& row : totals)
      for (V& total : row) total = Simd::zero();
    run_tile<Score, T>(worker.panel,
                       job.packed_queries + position * job.num_features * Score::planes,
                       job.num_features, limits, totals);
    for (int a = 0; a < T && position + a < job.num_queries; ++a)
      for (int b = 0; b < Score::vectors; ++b)
        Simd::store(out + (position + a) * L + b * Simd::W, Score::finish(totals[a][b]));
  }
}

template <class Score>
float bare_loop(const float* panel, const float* tile, int64_t features, int64_t repeats) {
  V sums[Score::tile_queries][Score::vectors];
  for (auto& row : sums)
    for (V& sum : row) sum = Simd::zero();
  for (int64_t i = 0; i < repeats; ++i)
    accumulate<Score, Score::tile_queries>(panel, tile, features, sums);
  float lanes[Simd::W], total = 0.0f;
  for (auto& row : sums)
    for (V& sum : row) {
      Simd::store(lanes, sum);
      for (float lane : lanes) total += lane;
    }
  return total;
}

template <class F>
inline auto with_score(ScoreId id, F&& call) {
  switch (id) {
    case ScoreId::dot: return call(Dot{});
    case ScoreId::l1: return call(L1{});
    case ScoreId::l2: return call(L2{});
    default: return call(Rotate{});
  }
}

inline const PairwiseKernels* pairwise_kernels() {
  static const PairwiseKernels kernels = {
      Simd::W,
      kSpan,
      [](const PairwiseJob& job, int64_t panel, int64_t first, int64_t last, Worker& worker) {
        with_score(job.sweep.score, [&](auto score) {
          pairwise_panel<Precise<decltype(score)>>(job, panel, first, last, worker);
        });
      },
      [](const PullJob& job, int64_t span, int64_t stripe, PullWorker& worker) {
        with_score(job.score,
                   [&](auto score) { pull<decltype(score)>(job, span, stripe, worker); });
      },
      [](const PullJob& job, int64_t span) {
        with_score(job.score, [&](auto score) { reduce_stripes<decltype(score)>(job, span); });
      },
  };
  return &kernels;
}

inline const TopkKernels* topk_kernels() {
  static const TopkKernels kernels = {[](const TopkJob& job, int64_t panel, TopkWorker& worker) {
    with_score(job.score, [&](auto score) {
      sweep_panel<Keeping<decltype(score)>>(job, panel, worker);
    });
  }};
  return &kernels;
}

inline const IndexedKernels* indexed_kernels() {
  static const IndexedKernels kernels = {
      [](int planes, int64_t features) { return 3 * planes * padded_features(features); },
      [](const IndexedJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
        with_score(job.score, [&](auto score) {
          score_query<Precise<decltype(score)>>(job, row, first, last, scratch);
        });
      },
      [](const IndexedPullJob& job, int64_t row, float* scratch) {
        with_score(job.score,
                   [&](auto score) { pull_query<decltype(score)>(job, row, scratch); });
      },
      [](const IndexedPullJob& job, int64_t position, float* scratch) {
        with_score(job.score,
                   [&](auto score) { pull_id<decltype(score)>(job, position, scratch); });
      },
  };
  return &kernels;
}

inline Isa make_isa(const char* name) {
  Isa isa;
  isa.name = name;
  isa.sqrt_error = Simd::sqrt_error;
  isa.lanes = [](ScoreId id) {
    return with_score(id, [](auto score) { return lanes_of<decltype(score)>(); });
  };
  isa.tile_queries = [](ScoreId id) {
    return with_score(id, [](auto score) { return int{decltype(score)::tile_queries}; });
  };
  isa.pack_queries = [](const SweepJob& job, float* out) {
    with_score(job.score, [&](auto score) { pack_queries<decltype(score)>(job, out); });
  };
  isa.sweep_panel = [](const SweepJob& job, int64_t panel, Worker& worker) {
    with_score(job.score, [&](auto score) {
      sweep_panel<Counting<decltype(score)>>(job, panel, worker);
    });
  };
  isa.decide_band = [](const SweepJob& job, Worker& worker) {
    with_score(job.score, [&](auto score) { decide_band<decltype(score)>(job, worker); });
  };
  isa.canonical = [](const SweepJob& job, const Pair* pairs, int64_t count, double* scratch,
                     double* out) {
    with_score(job.score, [&](auto score) {
      canonical_scores<decltype(score)>(job, pairs, count, scratch, out);
    });
  };
  isa.sweep_values = [](const SweepJob& job, int64_t panel, Worker& worker, float* out,
                        float* norm) {
    with_score(job.score, [&](auto score) {
      sweep_values<decltype(score)>(job, panel, worker, out, norm);
    });
  };
  isa.bare_loop = [](ScoreId id, const float* panel, const float* tile, int64_t features,
                     int64_t repeats) {
    return with_score(id, [&](auto score) {
      return bare_loop<decltype(score)>(panel, tile, features, repeats);
    });
  };
  isa.pairwise = pairwise_kernels();
  isa.indexed = indexed_kernels();
  static const LossKernels losses = {run_loss_row};
  isa.losses = &losses;
  isa.topk = topk_kernels();
  return isa;
}

}  // namespace
}  // namespace kgfast
