// Ranks and the best k among candidates that each query names itself, for one crop.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
#pragma once
#include "host/execution.h"

namespace kgfast {

// One instruction set's kernel: the distances of a query to `count` rows by the sweep's terms, and
// for products the sums of squares of the rows. Not for rscf scores. Scratch: one query.
struct ListKernels {
  void (*distances)(const SweepJob&, int64_t query, const int64_t* ids, int64_t count,
                    float* scratch, float* distances, float* squares);
};

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
