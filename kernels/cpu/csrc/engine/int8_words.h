// Sums of products of words: a panel of 64 candidates against tiles of 16 queries, by instructions
// that take two words of a candidate and of a query (simd/words_*.h).
//
// A row is scaled so that its norm is below 46290: no sum of products overflows 32 bits, and one
// product of words is all that the bound needs, where AMX takes three of bytes. Panels that are
// packed for a call hold words in the order of the sweep,
//   int16 words [4 columns][K / 2][16 candidates][2 features], and facts as in host/int8.h,
// and panels of an index hold bytes as host/int8.h has them, which many queries join to words.
// Tiles of queries are
//   int16 words [K / 4][16 queries][4 features].
//
// Cost model, per 16 pairs and 2 features: 1 instruction of AVX512-VNNI, 4 of AVX2, where float32
// takes 2 and 4 (of which AVX2's additions use other ports than its products). Measured on an AMD
// EPYC (Zen 4), bare loops: 107 to 115e9 products a second against 55 to 58e9 (AVX2: 86 to 90e9
// against 51 to 58e9). Sums that are stored, compared and counted take about 12 instructions for 16
// pairs more.
//
// One product of bytes is four times as fast as float32, but leaves 9% (128 features) to 20% (512)
// of random pairs open; to decide these by words of their rows takes 25 to 47 cycles a pair, as the
// rows come from the second-level cache and their number is not foreseen: 1.55 to 1.9 times as fast
// as float32 in a bare loop, where one product of words and its comparisons are 1.65 to 1.95.
//
// Few queries wait for the memory: of panels of an index they read the high bytes first, a quarter
// of float32, and low bytes of the columns that these leave open.
#pragma once
#include <vector>

#include "engine/int8_consumers.h"

namespace kgfast {
namespace {

constexpr double kWordPacking = 60.0;  // cycles of a candidate, beyond float32's

// Stores whole numbers of a row as words.
struct WordsOut {
  int16_t* out;
  void store(int64_t block, const I* whole) {
    for (int i = 0; i < kBlockVectors; ++i)
      Words::store_words(out + block * kInt8Block + i * Simd::W, whole[i]);
  }
  float low_squares() const { return 0.0f; }
};

// Packs a panel of words for one call.
__attribute__((noinline)) void pack_word_panel(const SweepJob& job, int64_t panel, char* scratch,
                                               char* out, Worker& worker) {
  const int64_t features = job.num_features, padded = int8_padded(features);
  auto* rows = reinterpret_cast<int16_t*>(scratch);  // [16][padded]
  auto* words = reinterpret_cast<int16_t*>(out);
  const auto pack = [&](const float* row, int i, Int8Sums* sums) {
    WordsOut to{rows + i * padded};
    pack_row(row, features, kMostWordNorm, to, i, sums);
  };
  const auto finish = [&](int64_t column) {
    for (int64_t k = 0; k < padded; k += 32) {
      const float* from[kInt8Column];
      for (int64_t i = 0; i < kInt8Column; ++i)
        from[i] = reinterpret_cast<const float*>(rows + i * padded + k);
      int16_t* to = words + column * padded + k * kInt8Column;
      transpose_column(from, reinterpret_cast<float*>(to));
    }
  };
  auto* floats = reinterpret_cast<float*>(rows + kInt8Column * padded);
  pack_panel_columns(job, panel, out, floats, worker, pack, finish);
}

void pack_word_queries(const SweepJob& job, int8_t* tiles, float* floats, Int8Query* queries) {
  const int64_t features = job.num_features, padded = int8_padded(features);
  std::vector<int16_t> words(padded);
  const auto pack = [&](const float* row, int8_t* tile, int i, Int8Sums* sums) {
    WordsOut to{words.data()};
    pack_row(row, features, kMostWordNorm, to, i, sums);
    auto* out = reinterpret_cast<int16_t*>(tile) + 4 * i;
    for (int64_t k = 0; k < padded; k += 4)
      std::memcpy(out + k * kInt8Queries, words.data() + k, 4 * sizeof(int16_t));
  };
  pack_query_tiles(job, tiles, floats, queries, false, pack);
}

// Joins the bytes of a panel to words, and copies its facts.
__attribute__((noinline)) void join_bytes(const char* panel, int64_t padded, char* out) {
  const int64_t half = kInt8Candidates * padded;
  for (int64_t at = 0; at < half; at += 4 * kInt8Column)
    for (int64_t i = 0; i < 4 * kInt8Column; i += Bytes::W) {
      B first, last;
      Words::join(Bytes::load(panel + at + i), Bytes::load(panel + half + at + i), &first, &last);
      Words::store(out + 2 * at + i, first);
      Words::store(out + 2 * at + 4 * kInt8Column + i, last);
    }
  std::memcpy(out + 2 * half, panel + 2 * half, kInt8Facts * kInt8Candidates * sizeof(float));
}

// Features of a row in whole steps of four; the rest of its last block is zero.
inline int64_t swept_features(int64_t features) { return (features + 3) / 4 * 4; }

// Products of Q queries of a tile and C columns of words, each [16][16] from the first query on.
template <int Q, int C>
inline void word_products(const int16_t* columns, const int16_t* queries, int64_t features,
                          int32_t* out) {
  const int64_t padded = int8_padded(features), swept = swept_features(features);
  constexpr int N = C * kParts;
  I sums[Q][N];
#pragma GCC unroll 8
  for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[a][n] = Bytes::zero();
  for (int64_t k = 0; k < swept; k += 4) {
#pragma GCC unroll 2
    for (int half = 0; half < 4; half += 2) {
      B c[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        c[n] = Bytes::load(columns + n / kParts * kInt8Column * padded + (k + half) * kInt8Column +
                           n % kParts * 2 * Simd::W);
#pragma GCC unroll 8
      for (int a = 0; a < Q; ++a) {
        const B q = Bytes::set_word(queries + k * kInt8Queries + a * 4 + half);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[a][n] = Words::add_word_products(sums[a][n], q, c[n]);
      }
    }
  }
  for (int a = 0; a < Q; ++a)
    for (int n = 0; n < N; ++n)
      Bytes::store_ints(out + n / kParts * kSums + a * kInt8Column + n % kParts * Simd::W,
                        sums[a][n]);
}

// Products of words of Q queries of a tile and signed bytes of a column, [Q][16].
template <int Q>
inline void byte_products(const int8_t* column, const int16_t* queries, int64_t features,
                          const char* next, int32_t* out) {
  const int64_t swept = swept_features(features);
  constexpr int N = 2 * kParts, lanes = Simd::W / 2;  // vectors, and candidates of each
  constexpr int chains = Q == 1 && N < 8 ? 2 : 1;     // of one sum, as its additions wait
  I sums[chains][Q][N];
  for (auto& chain : sums)
    for (auto& row : chain)
      for (I& sum : row) sum = Bytes::zero();
  const auto step = [&](int64_t k, I (&chain)[Q][N]) __attribute__((always_inline)) {
    if (next) __builtin_prefetch(next + k * kInt8Column, 0, 2);
    B c[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      c[n] = Words::load_widened(column + k * kInt8Column + n * 4 * lanes);
#pragma GCC unroll 4
    for (int a = 0; a < Q; ++a) {
      const B q = Bytes::set_run(queries + k * kInt8Queries + a * 4);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) chain[a][n] = Words::add_word_products(chain[a][n], q, c[n]);
    }
  };
  int64_t k = 0;
  for (; k + 4 * chains <= swept; k += 4 * chains)
#pragma GCC unroll 2
    for (int i = 0; i < chains; ++i) step(k + 4 * i, sums[i]);
  for (; k < swept; k += 4) step(k, sums[0]);
  for (int a = 0; a < Q; ++a)
    for (int n = 0; n < N; ++n) {
      I sum = sums[0][a][n];
      for (int i = 1; i < chains; ++i) sum = Bytes::add(sum, sums[i][a][n]);
      Bytes::store_pairs(out + a * kInt8Column + n * lanes, sum);
    }
}

// The same of all queries of a tile.
inline void all_byte_products(const int8_t* column, const int16_t* queries, int64_t count,
                              int64_t features, const char* next, int32_t* out) {
  constexpr int Q = 16 / (2 * kParts) < 4 ? 2 : 4;
  int64_t i = 0;
  for (; i + Q <= count; i += Q, next = nullptr)
    byte_products<Q>(column, queries + 4 * i, features, next, out + i * kInt8Column);
  for (; i < count; ++i, next = nullptr)
    byte_products<1>(column, queries + 4 * i, features, next, out + i * kInt8Column);
}

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
struct WordSums {
  const int32_t* sums;
  V at(int64_t i) const { return Bytes::to_floats(Bytes::load_ints(sums + i)); }
};

struct WordEngine {
  static constexpr float unit = 1.0f / 256.0f;  // of products of words

  // Calls take(position, count, column facts, sums) for tiles of queries and every column of a
  // panel.
  template <class Take>
  static void sweep(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                    Take take) {
    constexpr int Q = Words::queries, C = Words::columns;
    const int64_t features = job.sweep->num_features, padded = int8_padded(features);
    const int64_t queries = job.sweep->num_queries;
    const FloatMode mode(FloatMode::kIeee);
    if (place.next) join_bytes(place.packed, padded, place.room);
    const char* packed = place.next ? place.room : place.packed;
    const auto* facts = reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * padded);
    const auto* tiles = reinterpret_cast<const int16_t*>(job.tiles);
    alignas(64) int32_t sums[C * kSums];
    const int64_t tiles_of_queries = (queries + kInt8Queries - 1) / kInt8Queries;
    RowsAhead ahead(*job.sweep, place.ahead, kInt8Candidates / kInt8Column / C * tiles_of_queries);
    for (int64_t first = 0; first < panel.valid; first += C * kInt8Column) {
      const auto* words = reinterpret_cast<const int16_t*>(packed) + first * padded;
      Int8Facts columns[C];
      for (int64_t i = 0; i < C; ++i)
        columns[i] = column_facts(job, panel, facts, first + i * kInt8Column, unit);
      for (int64_t position = 0; position < queries; position += kInt8Queries) {
        const int64_t count = std::min(kInt8Queries, queries - position);
        ahead.step();
        for (int64_t i = 0; i < count; i += Q)
          word_products<Q, C>(words, tiles + position * padded + 4 * i, features,
                              sums + i * kInt8Column);
        for (int64_t i = 0; i < C; ++i)
          take(position, count, columns[i], WordSums{sums + i * kSums});
      }
    }
  }

  // Reads high bytes first, for one tile of queries: calls take as `sweep` does, of the columns of
  // which decide(column facts, sums of the high bytes) says that these leave a pair open. Low bytes
  // of other columns are not read: half of the memory.
  template <class Decide, class Take>
  static void sweep_high(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                         BytesPause& pause, Decide decide, Take take) {
    const int64_t features = job.sweep->num_features, padded = int8_padded(features);
    const int64_t queries = job.sweep->num_queries;
    const int64_t facts_at = 2 * kInt8Candidates * padded;
    const auto* facts = reinterpret_cast<const float*>(place.packed + facts_at);
    const auto* tile = reinterpret_cast<const int16_t*>(job.tiles);
    const FloatMode mode(FloatMode::kIeee);
    alignas(64) int32_t sums[kSums], low[kSums];
    int64_t opened = 0;
    fetch_bytes(place.next + facts_at, kInt8Facts * kInt8Candidates * 4);
    for (int64_t first = 0; first < panel.valid; first += kInt8Column) {
      const char* next = place.next + first * padded;
      const auto* high = reinterpret_cast<const int8_t*>(place.packed) + first * padded;
      all_byte_products(high, tile, queries, features, next, sums);
      Int8Facts column = column_facts(job, panel, facts, first, 1.0f);
      if (decide(column, WordSums{sums})) continue;
      ++opened;
      all_byte_products(high + kInt8Candidates * padded, tile, queries, features, nullptr, low);
      for (int64_t i = 0; i < queries * kInt8Column; ++i)
        sums[i] = static_cast<int32_t>(256u * static_cast<uint32_t>(sums[i]) +
                                       static_cast<uint32_t>(low[i]));
      for (V& scale : column.scale) scale = Simd::mul(scale, Simd::set1(unit));
      take(int64_t{0}, queries, column, WordSums{sums});
    }
    pause_bytes(opened <= kInt8Candidates / kInt8Column / 2, pause);
  }
};

// `saving`: cycles of a pair, against float32, as a product with features less a constant.
template <class Saving>
inline const Int8Tier* word_tier(Saving saving) {
  static const Int8Tier tier = {"int16",
                                saving,
                                kWordPacking,
                                [](int64_t) {},
                                [] {},
                                pack_word_queries,
                                pack_int8_panel<true>,
                                pack_word_panel,
                                check_int8_panel,
                                count_int8_panel<WordEngine>,
                                keep_int8_panel<WordEngine>,
                                record_int8_panel<WordEngine>};
  return &tier;
}

}  // namespace
}  // namespace kgfast
