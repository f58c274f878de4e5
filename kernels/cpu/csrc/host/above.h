// Finds all candidates whose canonical scores reach their query's threshold, for one crop: by the
// sweep of the best k with fixed limits, then by canonical scores of the open pairs.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "host/parallel.h"

namespace kgfast {

struct AboveRequest {
  Operands operands;
  int64_t num_features;
  const double* lowest;  // [B]: the lowest canonical scores that reach the thresholds
  Known known;
  int64_t most;  // results of all queries together
};

// A part of the results, by query and then by id.
struct AbovePiece {
  std::vector<std::pair<int64_t, int64_t>> runs;  // a query, and its number of results here
  std::unique_ptr<Buffer<int64_t>> ids;
  std::unique_ptr<Buffer<char>> scores;  // scores in the queries' dtype
};

struct AboveResult {
  std::vector<AbovePiece> pieces;
  int64_t num_queries = 0;
  int64_t count = 0;  // results; above `most`, not all are kept
  bool is_double = false;

  // Writes all results as CSR, ids ascending in each row; each piece is freed once it is written.
  void write(int threads, int64_t* indptr, int64_t* ids, void* scores);
};

SweepStatus above(const Execution& execution, const AboveRequest& request, AboveResult* result);

}  // namespace kgfast
