// The best k candidates of every query on the CPU, for one crop: sweep, survivors, exact order.
#pragma once
#include "host/execution.h"

namespace kgfast {

// A candidate with its canonical score.
struct Scored {
  double score;
  int64_t candidate;
};

// Orders results by score, NaN last, the lowest id first among equals.
bool is_better(const Scored& a, const Scored& b);

struct TopkRequest {
  Operands operands;
  int64_t num_features;
  int64_t k;
  Known lists;  // candidates that each query names itself, each once; or no memory
  Known known;
  bool nan_worst;
  void* scores;  // [B, k] of the queries' dtype
  int64_t* ids;  // [B, k]
};

SweepStatus topk(const Execution& execution, const TopkRequest& request);

}  // namespace kgfast
