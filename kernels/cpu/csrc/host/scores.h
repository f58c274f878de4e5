// Scores of every query with every row of a table, or with rows that it names itself. Plain data,
// like job.h.
#pragma once
#include "host/execution.h"

namespace kgfast {

struct CropList {
  const int64_t* widths;  // [C] ascending, each once
  const int64_t* slots;   // [C] which matrix of the result a crop fills
  int64_t count;          // C
};

struct ScoresJob : Operands {
  CropList crops;
  const int64_t* index;  // [B, K] rows of the table; nullptr: place k of every query is row k
  int64_t per_query;     // K
  const float* bias;     // [N] or nullptr
  float* out;            // [*, B, K]
  int64_t num_features;  // features of the widest crop
};

// Scores of queries with all rows, panel by panel.
struct PanelJob : SweepJob {
  const int64_t* slots;  // [C]
  float* out;            // [*, B, N]
};

struct ScoresKernels {
  void (*panel)(const PanelJob&, int64_t panel, Worker&);  // scores a panel with a pass of queries
  int64_t (*query_floats)(ScoreId, int64_t num_features);  // floats of a query held as float32
  // Scores query `row` with its places [first, last); scratch: one query.
  void (*indexed)(const ScoresJob&, int64_t row, int64_t first, int64_t last, float* scratch);
  // Writes the sum of squares of each row.
  void (*squares)(const Rows&, const int64_t* ids, int64_t count, int64_t features, float* out);
};

// Computes the scores; returns true if interrupted.
bool scores(const Execution& execution, const ScoresJob& job);

}  // namespace kgfast
