// Sums of products of words: a panel of 64 candidates against tiles of 16 queries, by instructions
// that take two words of a candidate and of a query (simd/words_*.h).
//
// A row is scaled so that its norm is below 46290: no sum of products overflows 32 bits, and one
// product of words is all that the bound needs. Panels that are packed for a call hold words in the
// order of the sweep,
//   int16 words [4 columns][K / 2][16 candidates][2 features], and facts as in host/int8.h,
// and panels of an index hold bytes as host/int8.h has them, which many queries join to words.
// Tiles of queries are
//   int16 words [16 / Q][K / 4][Q queries][4 features] of Q = Words::queries, so that words which
// are multiplied together lie together: a tile of 16 and a column would fill a first-level cache.
//
// Cost model, per 16 pairs and 2 features: 1 instruction of AVX512-VNNI, 4 of AVX2, where float32
// takes 2 and 4 (of which AVX2's additions use other ports than its products). Measured on an AMD
// EPYC (Zen 4), bare loops: 107 to 115e9 products a second against 55 to 58e9 (AVX2: 86 to 90e9
// against 51 to 58e9). Sums that are stored, compared and counted take about 12 instructions for 16
// pairs more.
//
// One product of bytes (int8_bytes.h) is four times as fast as float32, and goes first where it
// leaves few pairs open. Random pairs are not so: 9% (128 features) to 20% (512) stay open. To
// decide these by words of their rows takes 26 to 54 cycles a pair even where rows are read tile by
// tile, which is no faster than one product of words.
//
// Few queries wait for the memory: from panels of an index they read the high bytes first, a
// quarter of float32, then the low bytes of columns that the high bytes leave open.
#pragma once
#include "engine/int8_bytes.h"

namespace kgfast {
namespace {

constexpr double kWordPacking = 60.0;  // cycles of a candidate, beyond float32's

// Returns the place of a query's first word in its tile.
inline int64_t word_query(int64_t i, int64_t padded) {
  return i / Words::queries * Words::queries * padded + i % Words::queries * 4;
}

void pack_word_queries(const SweepJob& job, int8_t* tiles, float* floats, Int8Query* queries) {
  const int64_t padded = int8_padded(job.num_features);
  const auto place = [&](const int16_t* words, int8_t* tile, int i) {
    auto* out = reinterpret_cast<int16_t*>(tile) + word_query(i, padded);
    for (int64_t k = 0; k < padded; k += 4)
      std::memcpy(out + k * Words::queries, words + k, 4 * sizeof(int16_t));
  };
  pack_number_queries<int16_t>(job, tiles, floats, queries, place);
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

// Computes products of Q queries of a tile and C columns of words, each [16][16] from query 0 on.
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
        const B q = Bytes::set_word(queries + k * Words::queries + a * 4 + half);
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

// Computes products of words of Q queries of a tile and signed bytes of a column, [Q][16].
template <int Q>
inline void byte_products(const int8_t* column, const int16_t* queries, int64_t features,
                          const char* next, int32_t* out) {
  const int64_t swept = swept_features(features);
  constexpr int N = 2 * kParts, lanes = Simd::W / 2;  // vectors, and candidates of each
  constexpr int chains = Q == 1 && N < 8 ? 2 : 1;     // sums, as an addition waits for the last
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
      const B q = Bytes::set_run(queries + k * Words::queries + a * 4);
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

// Computes products of words of all queries of a tile and signed bytes of a column, [count][16].
inline void all_byte_products(const int8_t* column, const int16_t* queries, int64_t count,
                              int64_t features, const char* next, int32_t* out) {
  constexpr int Q = 16 / (2 * kParts) < 4 ? 2 : 4;
  static_assert(Words::queries % Q == 0);
  const int64_t padded = int8_padded(features);
  const auto from = [&](int64_t query) { return queries + word_query(query, padded); };
  int64_t i = 0;
  for (; i + Q <= count; i += Q, next = nullptr)
    byte_products<Q>(column, from(i), features, next, out + i * kInt8Column);
  for (; i < count; ++i, next = nullptr)
    byte_products<1>(column, from(i), features, next, out + i * kInt8Column);
}

struct WordEngine {
  static constexpr float unit = 1.0f / 256.0f;  // unit of products of words
  static constexpr int queries = Words::queries, columns = Words::columns, width = 2;

  static void multiply(const char* rows, const int8_t* tile, int64_t first, int64_t features,
                       int32_t* out) {
    word_products<queries, columns>(reinterpret_cast<const int16_t*>(rows),
                                    reinterpret_cast<const int16_t*>(tile) +
                                        word_query(first, int8_padded(features)),
                                    features, out);
  }

  // Calls take as sweep_columns does; the bytes of a panel of an index are joined to words first.
  template <class Take>
  static void sweep(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                    Take take) {
    if (place.next) join_bytes(place.packed, int8_padded(job.sweep->num_features), place.room);
    sweep_columns<WordEngine>(job, panel, place, place.next ? place.room : place.packed, take);
  }

  // Reads high bytes first, for one tile of queries. decide(column facts, sums of the high bytes)
  // returns true if these leave no pair of a column open. Other columns go to `take`, as in
  // `sweep`. Only these columns' low bytes are read, which saves up to half of the memory.
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
      if (decide(column, WholeSums{sums})) continue;
      ++opened;
      all_byte_products(high + kInt8Candidates * padded, tile, queries, features, nullptr, low);
      for (int64_t i = 0; i < queries * kInt8Column; ++i)
        sums[i] = static_cast<int32_t>(256u * static_cast<uint32_t>(sums[i]) +
                                       static_cast<uint32_t>(low[i]));
      for (V& scale : column.scale) scale = Simd::mul(scale, Simd::set1(unit));
      take(int64_t{0}, queries, column, WholeSums{sums});
    }
    pause_bytes(opened <= kInt8Candidates / kInt8Column / 2, pause);
  }
};

// Returns the tier; `saving`: cycles that a pair saves, some share of the features less a constant.
constexpr Int8Tier word_tier(double (*saving)(int64_t features)) {
  return {saving,
          kWordPacking,
          {pack_word_queries, pack_number_panel<int16_t>, count_int8_panel<WordEngine>,
           record_int8_panel<WordEngine>},
          Bytes::has_products ? &kByteRows : nullptr,  // else bytes are no faster than words
          pack_int8_panel,
          check_int8_panel,
          keep_int8_panel<WordEngine>};
}

}  // namespace
}  // namespace kgfast
