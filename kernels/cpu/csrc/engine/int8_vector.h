// Sums of products of a panel of 64 candidates and tiles of 16 queries, by vectors: words
// (int8_words.h) or bytes (int8_bytes.h).
#pragma once
#include "engine/int8_consumers.h"

namespace kgfast {
namespace {

// Features of a row in whole steps of four; the rest of its last block is zero.
inline int64_t swept_features(int64_t features) { return (features + 3) / 4 * 4; }

// Asks for the rows of a panel that is packed soon, a part in each of so many steps.
class RowsAhead {
 public:
  RowsAhead(const SweepJob& job, int64_t panel, int64_t steps) : job_(job) {
    constexpr int64_t most = 1024;  // features: 64 rows are a quarter of a second-level cache
    if (panel < 0 || !is_direct(job.rows) || job.num_features > most) return;
    next_ = panel * kInt8Candidates;
    end_ = std::min(next_ + kInt8Candidates, job.num_candidates);
    rows_ = ((end_ - next_) + steps - 1) / steps;
  }
  void step() {
    for (int64_t i = 0; i < rows_ && next_ < end_; ++i, ++next_) {
      const float* row = run_at<float>(job_.rows.view, candidate_of(job_, next_), 0, 0);
      for (int64_t k = 0; k < job_.num_features; k += 16) __builtin_prefetch(row + k, 0, 2);
    }
  }

 private:
  const SweepJob& job_;
  int64_t next_ = 0, end_ = 0, rows_ = 0;
};

// Sums of a run of queries and a column, [queries][16].
struct WholeSums {
  const int32_t* sums;
  V at(int64_t i) const { return Bytes::to_floats(Bytes::load_ints(sums + i)); }
};

// Calls take(position, count, column facts, sums) for tiles of queries and every column of a panel.
// Rows::multiply writes the products of Rows::queries queries of a tile and Rows::columns columns of
// Rows::width bytes a number.
template <class Rows, class Take>
inline void sweep_columns(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                          const char* packed, Take take) {
  constexpr int Q = Rows::queries, C = Rows::columns;
  const int64_t features = job.sweep->num_features, padded = int8_padded(features);
  const int64_t queries = job.sweep->num_queries;
  const FloatMode mode(FloatMode::kIeee);
  const auto* facts = reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * padded);
  alignas(64) int32_t sums[C * kSums];
  const int64_t tiles_of_queries = (queries + kInt8Queries - 1) / kInt8Queries;
  RowsAhead ahead(*job.sweep, place.ahead, kInt8Candidates / kInt8Column / C * tiles_of_queries);
  for (int64_t first = 0; first < panel.valid; first += C * kInt8Column) {
    const char* rows = packed + first * padded * Rows::width;
    Int8Facts columns[C];
    for (int64_t i = 0; i < C; ++i)
      columns[i] = column_facts(job, panel, facts, first + i * kInt8Column, Rows::unit);
    for (int64_t position = 0; position < queries; position += kInt8Queries) {
      const int64_t count = std::min(kInt8Queries, queries - position);
      const int8_t* tile = job.tiles + 2 * position * padded;
      ahead.step();
      for (int64_t i = 0; i < count; i += Q)
        Rows::multiply(rows, tile, i, features, sums + i * kInt8Column);
      for (int64_t i = 0; i < C; ++i)
        take(position, count, columns[i], WholeSums{sums + i * kSums});
    }
  }
}

}  // namespace
}  // namespace kgfast
