// Ranks on the CPU: targets, sweep, undecided band, known answers; of all crops from one sweep.
#pragma once
#include <functional>
#include <vector>

#include "host/job.h"

namespace kgfast {

struct RankRequest {
  SweepJob job;  // score, planes, table, query, bias, candidate_ids, num_rows, targets
  std::vector<int64_t> widths;  // [C], ascending, each once
  bool has_subset;  // whether there are candidate_ids; an empty subset has no memory
  const int64_t* sorted_candidate_ids;
  const int64_t* exclude_indptr;        // [B + 1]
  const int64_t* exclude_indices;
  int64_t* counts;  // [C][4][B]: greater, equal, greater excluded, equal excluded
  double bias_magnitude;  // largest |bias|
  int term_ulps;          // of the score, see kernels/scores.py
  int threads;
  bool nan_worst;
};

// `interrupted` is asked now and then, by the calling thread only, whether to give up.
SweepStatus rank_counts(const Isa& isa, RankRequest& request,
                        const std::function<bool()>& interrupted);

// What the sweep computes for every pair and the bound on its error, both [C][B][M] in the units of
// a distance (for l2 after the root): the test of the bound.
void sweep_errors(const Isa& isa, RankRequest& request, float* values, double* bounds);

}  // namespace kgfast
