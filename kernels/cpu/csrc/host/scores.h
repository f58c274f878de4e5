// Scores of every query with every row of a table, or with rows that it names itself. Plain data,
// like job.h.
#pragma once
#include "host/execution.h"

namespace kgfast {

constexpr int64_t kRun = 128;  // features converted at a time

namespace {

// Returns the features of a padded plane: whole runs, and a cache line more, so that planes of 2^n
// features do not meet in the same sets of the cache.
inline int64_t padded_features(int64_t features) {
  return (features + kRun - 1) / kRun * kRun + 16;
}

}  // namespace

struct CropList {
  const int64_t* widths;  // [C] ascending, each once
  int64_t count;          // C
};

struct ScoresJob : Operands {
  CropList crops;
  const int64_t* index;  // [B, K] rows of the table; nullptr: place k of every query is row k
  int64_t per_query;     // K
  const float* bias;     // [N] or nullptr
  float* out;            // [C, B, K]
  int64_t num_features;  // features of the widest crop
  float* squares;        // [B, K] sums of squares of rows, for products of one crop; or nullptr
};

// Scores of queries with all rows, panel by panel.
struct PanelJob : SweepJob {
  float* out;  // [C, B, N]
};

struct ScoresKernels {
  void (*panel)(const PanelJob&, int64_t panel, Worker&);  // scores a panel with a pass of queries
  // Scores query `row` with its places [first, last); scratch: a padded query.
  void (*indexed)(const ScoresJob&, int64_t row, int64_t first, int64_t last, float* scratch);
};

// Computes the scores; returns true if interrupted.
bool scores(const Execution& execution, const ScoresJob& job);

}  // namespace kgfast
