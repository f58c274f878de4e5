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

// Candidates that each query names itself, for one crop.
struct ListRequest {
  Operands operands;
  int64_t num_features;
  Known lists;  // the candidates of each query, each once
  Known known;
  bool nan_worst;
};

// Fills counts [4][B]: greater, equal, and both of the excluded; a target never counts.
SweepStatus list_counts(const Execution& execution, const ListRequest& request,
                        const int64_t* targets, int64_t* counts);

// Fills scores [B, k] of the queries' dtype and ids [B, k].
SweepStatus list_topk(const Execution& execution, const ListRequest& request, int64_t k,
                      void* scores, int64_t* ids);

}  // namespace kgfast
