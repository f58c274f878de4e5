// Ranks on the CPU: targets, sweep, undecided band, known answers; of all crops from one sweep.
#pragma once
#include <vector>

#include "host/execution.h"

namespace kgfast {

struct RankRequest {
  Operands operands;
  std::vector<int64_t> widths;  // [C], ascending, each once
  const int64_t* targets;       // [B]; -1 is no row, where target_scores are given
  const double* target_scores;  // [C][B], or null: the scores of the target rows
  const int64_t* sorted_candidate_ids;
  Known lists;  // candidates that each query names itself, each once; or no memory
  Known known;
  bool nan_worst;
  int64_t* counts;  // [C][4][B]: greater, equal, and both of the excluded; a target never counts
  PairCounts* pairs;
  float* recorded;  // [2][C][B][M]: the low and high ends of all costs instead, for tests; or null
};

SweepStatus rank_counts(const Execution& execution, const RankRequest& request);

}  // namespace kgfast
