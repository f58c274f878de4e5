// Sums of products of a panel of 64 candidates and tiles of 16 queries, by vectors: words
// (int8_words.h) or bytes (int8_bytes.h).
#pragma once
#include <vector>

#include "engine/int8_consumers.h"

namespace kgfast {
namespace {

// Features of a row in whole steps of four; the rest of its last block is zero.
inline int64_t swept_features(int64_t features) { return (features + 3) / 4 * 4; }

// Stores whole numbers of a row as words, or as bytes plus 128.
template <class Number>
struct NumbersOut {
  Number* out;
  void store(int64_t block, const I* whole) {
    for (int i = 0; i < kBlockVectors; ++i) store(out + block * kInt8Block + i * Simd::W, whole[i]);
  }
  static void store(uint8_t* to, I whole) { Bytes::store_bytes(to, whole); }
  static void store(int16_t* to, I whole) { Words::store_words(to, whole); }
  float low_squares() const { return 0.0f; }
};

template <class Number>
constexpr RowLimits kNumberLimits = kWordLimits;
template <>
constexpr RowLimits kNumberLimits<uint8_t>{static_cast<float>(Bytes::most),
                                           std::numeric_limits<float>::infinity()};

// Packs a panel for one call, [4 columns][K / n][16 candidates][n features] of 4 bytes each, and
// facts as in host/int8.h.
template <class Number>
__attribute__((noinline)) void pack_number_panel(const SweepJob& job, int64_t panel, char* scratch,
                                                 char* out, Worker& worker) {
  const int64_t features = job.num_features, padded = int8_padded(features);
  auto* rows = reinterpret_cast<Number*>(scratch);  // [16][padded]
  const auto pack = [&](const float* row, int i, Int8Sums* sums) {
    NumbersOut<Number> to{rows + i * padded};
    pack_row(row, features, kNumberLimits<Number>, to, i, sums);
  };
  const auto finish = [&](int64_t column) {
    for (int64_t k = 0; k < padded; k += 64 / int64_t{sizeof(Number)}) {
      const float* from[kInt8Column];
      for (int64_t i = 0; i < kInt8Column; ++i)
        from[i] = reinterpret_cast<const float*>(rows + i * padded + k);
      Number* to = reinterpret_cast<Number*>(out) + column * padded + k * kInt8Column;
      transpose_column(from, reinterpret_cast<float*>(to));
    }
  };
  auto* floats = reinterpret_cast<float*>(rows + kInt8Column * padded);
  pack_panel_columns(job, panel, out, floats, worker, pack, finish);
}

// Packs queries; place(numbers, tile, i) copies the numbers of query i into its tile.
template <class Number, class Place>
inline void pack_number_queries(const SweepJob& job, int8_t* tiles, float* floats,
                                Int8Query* queries, Place place) {
  std::vector<Number> numbers(int8_padded(job.num_features));
  const auto pack = [&](const float* row, int8_t* tile, int i, Int8Sums* sums) {
    NumbersOut<Number> to{numbers.data()};
    pack_row(row, job.num_features, kNumberLimits<Number>, to, i, sums);
    place(numbers.data(), tile, i);
  };
  pack_query_tiles(job, tiles, floats, queries, pack);
}

// Prefetches the rows of a panel that is packed soon, a part in each of so many steps.
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
// Rows::multiply writes the products of Rows::queries queries of a tile and Rows::columns columns
// of Rows::width bytes a number.
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
