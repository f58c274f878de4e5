// Sums of products of words: a panel of 64 candidates against tiles of 16 queries. A consumer
// (int8_consumers.h) takes the sums of a run of queries and a column of 16 candidates at a time,
// with the bound on their errors.
//
// A row is scaled so that its length is below 46290: no sum of products overflows 32 bits, and one
// product of words is all that the bound needs. Panels that are packed for a call hold words in the
// order of the sweep,
//   int16 words [4 columns][K / 2][16 candidates][2 features], and facts as in host/int8.h,
// and panels of an index hold bytes as host/int8.h has them, which many queries join to words.
// Tiles of queries are
//   int16 words [16 / Q][K / 4][Q queries][4 features] of Q = Bytes::queries, so that words which
// are multiplied together lie together: a tile of 16 and a column would fill a first-level cache.
//
// Cost model, per 16 pairs and 2 features: 1 instruction of AVX512-VNNI, 4 of AVX2, where float32
// takes 2 and 4. Few queries wait for the memory: from panels of an index they read the high bytes
// first, then the low bytes of columns that the high bytes leave open.
#pragma once
#include "engine/int8_pack.h"
#include "engine/sweep.h"

namespace kgfast {
namespace {

constexpr float kWordUnit = 1.0f / 256.0f;  // unit of products of words
constexpr int64_t kSums = kInt8Queries * kInt8Column;
constexpr int kParts = kInt8Column / Simd::W;  // vectors of a column

// Facts of a column of candidates, shared by all queries.
struct Int8Facts {
  V scale[kParts], error[kParts], bias[kParts];  // errors: for a slope of 1
  V high_error[kParts];  // errors of high bytes alone
  int64_t first;         // position of lane 0 among the candidates
  uint32_t valid;        // lanes that hold a candidate
};

// Returns the facts of a column, for sums in units of `unit` times 256 scales.
inline Int8Facts column_facts(const Int8Job& job, const PanelFacts& panel, const float* facts,
                              int64_t column, float unit) {
  const int64_t left = panel.valid - column;
  const V up = Simd::set1(1.0f + 0x1p-20f);
  Int8Facts found;
  for (int p = 0; p < kParts; ++p) {
    const int64_t at = column + p * Simd::W;
    const V size = Simd::load(facts + 128 + at), low = Simd::load(facts + 192 + at);
    const V rest = Simd::fma(Simd::set1(job.rounding_share), size, Simd::load(facts + 64 + at));
    found.scale[p] = Simd::mul(Simd::load(facts + at), Simd::set1(unit));
    found.error[p] = Simd::mul(rest, up);
    found.bias[p] = Simd::load(panel.bias + at);
    found.high_error[p] = Simd::mul(Simd::add(low, rest), up);
  }
  found.first = panel.first + column;
  found.valid = left >= kInt8Column ? 0xFFFF : left < 0 ? 0 : (1u << left) - 1;
  return found;
}

// Returns the bound on the errors of distances, plus `base`.
inline V int8_errors(float slope, V error, float base) {
  return Simd::fma(Simd::set1(slope), error, Simd::set1(base));
}

// Features of a row in whole steps of four; the rest of its last block is zero.
inline int64_t swept_features(int64_t features) { return (features + 3) / 4 * 4; }

// Sums of a run of queries and a column, [queries][16].
struct WholeSums {
  const int32_t* sums;
  V at(int64_t i) const { return Bytes::to_floats(Bytes::load_ints(sums + i)); }
};

// Joins the bytes of a panel to words, and copies its facts.
__attribute__((noinline)) void join_bytes(const char* panel, int64_t padded, char* out) {
  const int64_t half = kInt8Candidates * padded;
  for (int64_t at = 0; at < half; at += 4 * kInt8Column)
    for (int64_t i = 0; i < 4 * kInt8Column; i += Bytes::W) {
      B first, last;
      Bytes::join(Bytes::load(panel + at + i), Bytes::load(panel + half + at + i), &first, &last);
      Bytes::store(out + 2 * at + i, first);
      Bytes::store(out + 2 * at + 4 * kInt8Column + i, last);
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
        const B q = Bytes::set_word(queries + k * Bytes::queries + a * 4 + half);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[a][n] = Bytes::add_word_products(sums[a][n], q, c[n]);
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
      c[n] = Bytes::load_widened(column + k * kInt8Column + n * 4 * lanes);
#pragma GCC unroll 4
    for (int a = 0; a < Q; ++a) {
      const B q = Bytes::set_run(queries + k * Bytes::queries + a * 4);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) chain[a][n] = Bytes::add_word_products(chain[a][n], q, c[n]);
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
  static_assert(Bytes::queries % Q == 0);
  const int64_t padded = int8_padded(features);
  const auto from = [&](int64_t query) { return queries + word_query(query, padded); };
  int64_t i = 0;
  for (; i + Q <= count; i += Q, next = nullptr)
    byte_products<Q>(column, from(i), features, next, out + i * kInt8Column);
  for (; i < count; ++i, next = nullptr)
    byte_products<1>(column, from(i), features, next, out + i * kInt8Column);
}

// Calls take(position, count, column facts, sums) for tiles of queries and every column of a panel
// of words.
template <class Take>
inline void sweep_words(const Int8Job& job, const PanelFacts& panel, const char* packed,
                        Take take) {
  constexpr int Q = Bytes::queries, C = Bytes::columns;
  const int64_t features = job.sweep->num_features, padded = int8_padded(features);
  const int64_t queries = job.sweep->num_queries;
  const FloatMode mode(FloatMode::kIeee);
  const auto* facts = reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * padded);
  alignas(64) int32_t sums[C * kSums];
  for (int64_t first = 0; first < panel.valid; first += C * kInt8Column) {
    const auto* rows = reinterpret_cast<const int16_t*>(packed) + first * padded;
    Int8Facts columns[C];
    for (int64_t i = 0; i < C; ++i)
      columns[i] = column_facts(job, panel, facts, first + i * kInt8Column, kWordUnit);
    for (int64_t position = 0; position < queries; position += kInt8Queries) {
      const int64_t count = std::min(kInt8Queries, queries - position);
      const auto* tile = reinterpret_cast<const int16_t*>(job.tiles) + position * padded;
      for (int64_t i = 0; i < count; i += Q)
        word_products<Q, C>(rows, tile + word_query(i, padded), features, sums + i * kInt8Column);
      for (int64_t i = 0; i < C; ++i)
        take(position, count, columns[i], WholeSums{sums + i * kSums});
    }
  }
}

// Reads high bytes first, for one tile of queries. decide(column facts, sums of the high bytes)
// returns true if these leave no pair of a column open. Other columns go to `take`. Only these
// columns' low bytes are read, which saves up to half of the memory.
template <class Decide, class Take>
inline void sweep_high(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                       BytesPause& pause, Decide decide, Take take) {
  const int64_t features = job.sweep->num_features, padded = int8_padded(features);
  const int64_t queries = job.sweep->num_queries;
  const int64_t facts_at = 2 * kInt8Candidates * padded;
  const auto* facts = reinterpret_cast<const float*>(place.packed + facts_at);
  const auto* tile = reinterpret_cast<const int16_t*>(job.tiles);
  const FloatMode mode(FloatMode::kIeee);
  alignas(64) int32_t sums[kSums], low[kSums];
  int64_t opened = 0;
  for (int64_t i = 0; i < kInt8Facts * kInt8Candidates * 4; i += 64)
    __builtin_prefetch(place.next + facts_at + i);
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
    for (V& scale : column.scale) scale = Simd::mul(scale, Simd::set1(kWordUnit));
    take(int64_t{0}, queries, column, WholeSums{sums});
  }
  pause_bytes(opened <= kInt8Candidates / kInt8Column / 2, pause);
}

// Sweeps a packed panel: few queries of a panel of an index begin with its high bytes.
template <class Decide, class Take>
inline void sweep_int8(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                       BytesPause& pause, Decide decide, Take take) {
  const char* packed = place.packed;
  if (place.next) {
    if (job.sweep->num_queries <= kInt8Queries && !pause.left)
      return sweep_high(job, panel, place, pause, decide, take);
    if (pause.left) --pause.left;
    join_bytes(place.packed, int8_padded(job.sweep->num_features), place.room);
    packed = place.room;
  }
  sweep_words(job, panel, packed, take);
}

}  // namespace
}  // namespace kgfast
