// One instruction set's kernels behind plain function pointers.
#pragma once
#include "engine/canonical.h"
#include "engine/indexed_backward.h"
#include "engine/indexed_rows.h"
#include "engine/pairwise_backward.h"
#include "engine/pairwise_sweep.h"
#include "engine/product_scores.h"
#include "engine/sweep.h"
#include "engine/training_rows.h"
#include "scores/precise.h"

namespace kgfast {
namespace {

constexpr ScoresKernels kScoresKernels = {
    [](const PanelJob& job, int64_t panel, Worker& worker) {
      with_precise(job.score, [&](auto score) {
        using Score = decltype(score);
        if constexpr (!Score::is_rscf && is_monotone<Score>)  // rscf: `indexed`; dot: product.h
          sweep_panel<Writing<Score>>(job, panel, worker);
      });
    },
    [](const ScoresJob& job, int64_t row, int64_t first, int64_t last, float* scratch) {
      with_precise(job.score, [&](auto score) {
        using Score = decltype(score);
        if (!is_monotone<Score> && job.squares)
          score_query<Score, !is_monotone<Score>>(job, row, first, last, scratch);
        else
          score_query<Score, false>(job, row, first, last, scratch);
      });
    },
};

constexpr BackwardKernels kBackwardKernels = {
    [](ScoreId id) {
      return with_precise(id, [](auto score) { return slice_shape<decltype(score)>(); });
    },
    [](const PairwiseBackwardJob& job, int64_t slice, int64_t range, BackwardWorker& worker) {
      with_score(job.score, [&](auto score) {
        using Score = decltype(score);
        if constexpr (is_monotone<Score>)  // else product.h
          backward_slice<Precise<Score>>(job, slice, range, worker);
      });
    },
    [](const PairwiseBackwardJob& job, int64_t slice) {
      with_score(job.score, [&](auto score) {
        using Score = decltype(score);
        if constexpr (is_monotone<Score>) add_ranges<Precise<Score>>(job, slice);
      });
    },
    [](const IndexedBackwardJob& job, int64_t row, float* out) {
      const FloatMode mode(FloatMode::kFlush);
      with_precise(job.score, [&](auto score) {
        load_query<decltype(score)>(job.query, row, job.num_features, 1.0f, out);
      });
    },
    [](const IndexedBackwardJob& job, int64_t row, float* scratch) {
      with_precise(job.score,
                   [&](auto score) { backward_query<decltype(score)>(job, row, scratch); });
    },
    [](const IndexedBackwardJob& job, int64_t position, float* scratch) {
      with_precise(job.score,
                   [&](auto score) { backward_row<decltype(score)>(job, position, scratch); });
    },
};

constexpr ProductKernels kProductKernels = {
    product_shape,        block_floats,     pack_others, sum_range, add_product_ranges,
    product_scores_shape, pack_query_strip, score_rows};
constexpr TrainingKernels kTrainingKernels = {run_loss_row, adagrad_part};

constexpr Isa make_isa(const char* name, const ByteTier* bytes, const Int8Tier* int8) {
  return {name,
          Simd::sqrt_error,
          [](ScoreId id) {
            return with_score(id, [](auto score) { return facts_of<decltype(score)>(); });
          },
          pack_queries,
          [](const SweepJob& job, int64_t panel, Worker& worker) {
            with_score(job.score, [&](auto score) {
              sweep_panel<Deciding<decltype(score)>>(job, panel, worker);
            });
          },
          [](const SweepJob& job, int64_t panel, Worker& worker) {
            return with_score(job.score, [&](auto score) {
              return pack_whole_panel<decltype(score)>(job, panel, worker);
            });
          },
          canonical_scores,
          take_lanes,
          &kScoresKernels,
          &kBackwardKernels,
          &kProductKernels,
          &kTrainingKernels,
          bytes,
          int8};
}

}  // namespace
}  // namespace kgfast
