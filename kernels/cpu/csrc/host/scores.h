// Scores of every query with every row of a table, or with rows that it names itself.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
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
struct PanelJob {
  SweepJob sweep;  // operands, bias and the packed queries of one pass
  CropList crops;
  float* out;  // [*, B, N]
};

struct ScoresKernels {
  // Scores the queries at positions [first, last) of a pass with one panel.
  void (*panel)(const PanelJob&, int64_t panel, int64_t first, int64_t last, Worker&);
  int64_t (*query_floats)(ScoreId, int64_t num_features);  // floats of a query held as float32
  // Scores query `row` with its places [first, last); scratch: one query.
  void (*indexed)(const ScoresJob&, int64_t row, int64_t first, int64_t last, float* scratch);
  // Floats that `block` needs for queries and rows that are not plain float32.
  int64_t (*block_scratch)(const ScoresJob&, int64_t rows);
  // Scores queries [row, end) with rows [first, last) of the table, where there is no index.
  void (*block)(const ScoresJob&, int64_t row, int64_t end, int64_t first, int64_t last,
                float* scratch);
};

// Computes the scores; returns true if interrupted.
bool scores(const Execution& execution, const ScoresJob& job);

}  // namespace kgfast
