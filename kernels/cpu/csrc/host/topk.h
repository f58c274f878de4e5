// The best k candidates of every query on the CPU, for one crop: sweep, survivors, exact order.
#pragma once
#include <vector>

#include "host/execution.h"

namespace kgfast {

// A candidate that may be among the best k. Its cost, the negated score, lies in low .. high.
struct Survivor {
  float low, high;
  int64_t candidate;
};

struct TopkJob : SweepJob {
  const Isa* isa;
  int64_t k;
  int64_t capacity;                // survivors that a worker holds of a query
  const float *base, *slope;       // [Q]: the absolute error, base + slope * panel norm
  float* limits;                   // [Q]: an upper bound on the k-th lowest cost, of all workers
  const int64_t* known;            // ids of query i, ascending: first_known[i] .. [i + 1] - 1
  const int64_t* first_known;      // [Q + 1]
};

struct AboveList;  // above.h

struct TopkWorker : Worker {
  Survivor* survivors;  // [Q][capacity]
  int64_t* counts;      // [Q]
  AboveList* above;     // candidates above a threshold, not survivors; or nullptr
};

// One instruction set's entry.
struct TopkKernels {
  void (*sweep_panel)(const TopkJob&, int64_t panel, TopkWorker&);
};

// Keeps the candidates that may be among the best k of a query: lanes of `open`, of up to 64, from
// panel place `first` on. `absolute` bounds the error of their distances beside crops->rel. The
// sweep calls this for what its own comparison leaves, which is rare.
void keep_survivors(const TopkJob& job, int64_t position, int64_t first, uint64_t open,
                    const float* distances, double absolute, TopkWorker& worker);

// Keeps candidates whose costs are at least `lows`; a NaN there means that nothing is known.
// Canonical scores of the k most promising lower the limit when a worker has many survivors.
void keep_open(const TopkJob& job, int64_t position, int64_t first, uint64_t open,
               const float* lows, TopkWorker& worker);

// Lowers the limit of a query by the canonical scores of its k most promising survivors, and drops
// the survivors past the limit.
void settle(const TopkJob& job, int64_t position, TopkWorker& worker);

// A candidate with its canonical score.
struct Scored {
  double score;
  int64_t candidate;
};

// Orders results by score, NaN last, the lowest id first among equals.
bool is_better(const Scored& a, const Scored& b);

// Sorts the candidates of a query, and writes the first k to row `query` of scores and ids [B, k].
void write_best(std::vector<Scored>& scored, int64_t k, DType dtype, int64_t query, void* scores,
                int64_t* ids);

struct TopkRequest {
  Operands operands;
  int64_t num_features;
  int64_t k;
  Known known;
  bool nan_worst;
  void* scores;  // [B, k] of the queries' dtype
  int64_t* ids;  // [B, k]
};

SweepStatus topk(const Execution& execution, const TopkRequest& request);

}  // namespace kgfast
