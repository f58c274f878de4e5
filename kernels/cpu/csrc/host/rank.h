// Ranks on the CPU: targets, sweep, undecided band, known answers; of all crops from one sweep.
#pragma once
#include <vector>

#include "host/execution.h"
#include "host/linear.h"

namespace kgfast {

struct RankRequest {
  Operands operands;
  std::vector<int64_t> widths;  // [C], ascending, each once
  const int64_t* targets;       // [B]; with scores given -1 is no row
  const double* target_scores;  // [C][B], or null: those of the rows
  const int64_t* sorted_candidate_ids;
  Known known;
  bool nan_worst;
  int64_t* counts;  // [C][4][B]: greater, equal, greater excluded, equal excluded
  PairCounts* pairs;
};

SweepStatus rank_counts(const Execution& execution, const RankRequest& request);

// What the sweep, or the tier that the execution may use, computes for every pair and the bound on
// its error, both [C][B][M] in the units of a distance (for l2 after the root): the test of the
// bound.
void sweep_errors(const Execution& execution, const RankRequest& request, float* values,
                  double* bounds);

// What the linear tier proves: no distance is below, [B][M]. For tests.
void linear_bounds(const Execution& execution, const RankRequest& request, double* bounds);

}  // namespace kgfast
