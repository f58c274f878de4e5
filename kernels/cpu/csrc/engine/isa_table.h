// One instruction set's kernels behind plain function pointers, with two entries more than ranking
// needs: the sweep's own values, for the test of the bound, and the bare register loop, the roof.
#pragma once
#include "engine/counting.h"
#include "engine/indexed_backward.h"
#include "engine/indexed_rows.h"
#include "engine/loss_row.h"
#include "engine/pairwise_sweep.h"
#include "engine/pairwise_backward.h"
#include "scores/precise.h"
#include "engine/sweep.h"
#include "engine/topk_sweep.h"

namespace kgfast {
namespace {

// Keeps the distances of one panel as the sweep computes them, [C][Q][lanes].
struct RecordWorker : Worker {
  float* out;
};

template <class S>
struct Recording {
  using Score = S;
  using Job = SweepJob;
  using Keeper = RecordWorker;
  static float limit(const SweepJob&, int64_t, int64_t, float) { return FLT_MAX; }
  static void take(const SweepJob& job, const PanelFacts&, int64_t crop, const V* totals,
                   int64_t position, float, RecordWorker& worker) {
    float* out = worker.out + (crop * job.num_queries + position) * lanes_of<Score>();
    for (int b = 0; b < Score::vectors; ++b)
      Simd::store(out + b * Simd::W, Score::finish(totals[b]));
  }
};

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

inline const PairwiseKernels* pairwise_kernels() {
  static const PairwiseKernels kernels = {
      [](ScoreId id) {
        return with_precise(id, [](auto score) {
          using Score = decltype(score);
          return PullShape{Simd::W, kBlocks<Score>,
                           kBlocks<Score> * Score::query_planes * Simd::W};
        });
      },
      [](const PairwiseJob& job, int64_t panel, int64_t first, int64_t last, Worker& worker) {
        with_score(job.sweep.score, [&](auto score) {
          pairwise_panel<Precise<decltype(score)>>(job, panel, first, last, worker);
        });
      },
      [](const PullJob& job, int64_t span, int64_t stripe, PullWorker& worker) {
        with_precise(job.score,
                     [&](auto score) { pull<decltype(score)>(job, span, stripe, worker); });
      },
      [](const PullJob& job, int64_t span) {
        with_precise(job.score, [&](auto score) { reduce_stripes<decltype(score)>(job, span); });
      },
  };
  return &kernels;
}

inline const TopkKernels* topk_kernels() {
  static const TopkKernels kernels = {[](const TopkJob& job, int64_t panel, TopkWorker& worker) {
    with_swept(job.score, [&](auto score) {
      sweep_panel<Keeping<decltype(score)>>(job, panel, worker);
    });
  }};
  return &kernels;
}

inline const IndexedKernels* indexed_kernels() {
  static const IndexedKernels kernels = {
      [](ScoreId id, int64_t features) {
        return with_precise(id,
                            [=](auto score) { return query_floats<decltype(score)>(features); });
      },
      [](ScoreId id, int64_t features) {
        return with_precise(id,
                            [=](auto score) { return pull_scratch<decltype(score)>(features); });
      },
      [](ScoreId id) {
        return with_precise(id, [](auto score) { return bool{decltype(score)::has_phase}; });
      },
      [](const IndexedJob& job, int64_t rows) {
        return with_precise(
            job.score, [&](auto score) { return block_scratch<decltype(score)>(job, rows); });
      },
      [](const IndexedJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
        with_precise(job.score, [&](auto score) {
          score_query<decltype(score)>(job, row, first, last, scratch);
        });
      },
      [](const IndexedJob& job, int64_t row, int64_t end, int64_t first, int64_t last,
         float* scratch) {
        with_precise(job.score, [&](auto score) {
          using Score = decltype(score);
          if constexpr (Score::query_planes > Score::row_planes)  // the others have panels
            score_block<Score>(job, row, end, first, last, scratch);
        });
      },
      [](const IndexedPullJob& job, int64_t row, float* out) {
        const FloatMode mode(FloatMode::kFlush);
        with_precise(job.score, [&](auto score) {
          load_query<decltype(score)>(job.query, row, job.num_features, 1.0f, out);
        });
      },
      [](const IndexedPullJob& job, int64_t row, float* scratch) {
        with_precise(job.score,
                     [&](auto score) { pull_query<decltype(score)>(job, row, scratch); });
      },
      [](const IndexedPullJob& job, int64_t position, float* scratch) {
        with_precise(job.score,
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
    return with_swept(id, [](auto score) { return lanes_of<decltype(score)>(); });
  };
  isa.tile_queries = [](ScoreId id) {
    return with_swept(id, [](auto score) { return int{decltype(score)::tile_queries}; });
  };
  isa.pack_queries = [](const SweepJob& job, float* out) {
    const QueryShape shape =
        with_swept(job.score, [](auto score) { return query_shape<decltype(score)>(); });
    pack_queries(job, shape, out);
  };
  isa.sweep_panel = [](const SweepJob& job, int64_t panel, Worker& worker) {
    with_swept(job.score, [&](auto score) {
      sweep_panel<Counting<decltype(score)>>(job, panel, worker);
    });
  };
  isa.decide_band = decide_band;
  isa.canonical = canonical_scores;
  isa.sweep_values = [](const SweepJob& job, int64_t panel, Worker& worker, float* out) {
    RecordWorker recorder{worker, out};
    with_swept(job.score, [&](auto score) {
      sweep_panel<Recording<decltype(score)>>(job, panel, recorder);
    });
  };
  isa.bare_loop = [](ScoreId id, const float* panel, const float* tile, int64_t features,
                     int64_t repeats) {
    return with_swept(id, [&](auto score) {
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
