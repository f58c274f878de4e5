// Scores of every query with rows of a table that it names itself, and their gradients.
//
// Plain data, like job.h: it crosses translation units of different instruction sets.
#pragma once
#include <functional>

#include "host/job.h"
#include "host/pairwise.h"
#include "host/rows.h"

namespace kgfast {

struct IndexedJob {
  ScoreId score;
  View query;
  Rows rows;             // of the table
  const int64_t* index;  // [B, K] rows of the table; nullptr: place k of every query is row k
  int64_t num_queries, per_query;
  int64_t num_features;   // of the widest crop
  const int64_t* widths;  // [C] crop widths, ascending, each once
  const int64_t* slots;   // [C] which matrix of `out` a crop fills
  int64_t num_widths;     // C
  const float* bias;      // [N] or nullptr
  float* out;             // [*, B, K]
};

struct IndexedPullJob {
  ScoreId score;
  View query;
  Rows rows;         // of the table
  View grad_query;   // [B], written
  Rows grad_rows;    // [U], written: of the distinct rows and their factor
  bool whole_table;  // grad_rows is [N], and each stands at its id
  const float* turned;  // [B][planes][padded], the queries as rows are scored with, or nullptr
  ScoreGradient grad;
  const int64_t* index;  // [B, K]
  int64_t num_queries, per_query;
  int64_t num_features;   // of the widest crop
  const int64_t* widths;  // [C] crop widths, ascending, each once
  const int64_t* ids;     // [U] distinct rows of the table
  const int64_t* order;   // [B K] positions in `index`, those of ids[0] first
  const int64_t* first;   // [U + 1] where the positions of an id begin
  int64_t num_ids;        // U
};

struct IndexedKernels {
  int64_t (*query_floats)(ScoreId, int64_t num_features);  // of a query that is held as float32
  int64_t (*pull_scratch)(ScoreId, int64_t num_features);  // floats that a worker needs
  bool (*turns)(ScoreId);  // whether queries are turned beforehand
  // Floats that score_block needs for queries and rows that are not plain float32.
  int64_t (*block_scratch)(const IndexedJob&, int64_t rows);
  // Scores of query `row` with its places [first, last); scratch: one query.
  void (*score)(const IndexedJob&, int64_t row, int64_t first, int64_t last, float* scratch);
  // Scores of queries [row, end) with rows [first, last) of the table, where there is no index.
  void (*score_block)(const IndexedJob&, int64_t row, int64_t end, int64_t first, int64_t last,
                      float* scratch);
  void (*turn)(const IndexedPullJob&, int64_t row, float* out);
  void (*pull_query)(const IndexedPullJob&, int64_t row, float* scratch);
  void (*pull_id)(const IndexedPullJob&, int64_t position, float* scratch);
};

// All ask `interrupted` now and then, on the calling thread only, and say whether it said so.
bool indexed_scores(const Isa& isa, const IndexedJob& job, int threads,
                    const std::function<bool()>& interrupted);
// Without an index: scores of all queries with all rows.
bool pool_scores(const Isa& isa, const IndexedJob& job, int threads,
                 const std::function<bool()>& interrupted);
bool indexed_pull_queries(const Isa& isa, const IndexedPullJob& job, int threads,
                          const std::function<bool()>& interrupted);
bool indexed_pull_rows(const Isa& isa, IndexedPullJob& job, int threads,
                       const std::function<bool()>& interrupted);

}  // namespace kgfast
