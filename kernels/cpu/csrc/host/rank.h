// Ranks on the CPU: targets, sweep, undecided band, known answers; of all crops from one sweep.
#pragma once
#include <vector>

#include "host/execution.h"
#include "host/tiers.h"

namespace kgfast {

struct RankRequest {
  Operands operands;
  std::vector<int64_t> widths;  // [C], ascending, each once
  const int64_t* targets;       // [B]; -1 is no row, where target_scores are given
  const double* target_scores;  // [C][B], or null: the scores of the target rows
  const int64_t* sorted_candidate_ids;
  Known known;
  bool nan_worst;
  int64_t* counts;  // [C][4][B]: greater, equal, greater excluded, equal excluded
  PairCounts* pairs;
};

SweepStatus rank_counts(const Execution& execution, const RankRequest& request);

// Writes the value and the error bound of the float32 sweep for every pair. Both are [C][B][M], in
// units of a distance (for l2 after the root), for the test of the bound.
void sweep_errors(const Execution& execution, const RankRequest& request, float* values,
                  double* bounds);

}  // namespace kgfast
