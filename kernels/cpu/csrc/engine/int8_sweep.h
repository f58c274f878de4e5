// Sums of products of words: a panel of 64 candidates against tiles of 16 queries. The sums of a
// run of queries and a column of 16 candidates, with the bound on their errors, are intervals of
// costs (consumers.h).
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
#include "engine/consumers.h"
#include "engine/int8_pack.h"
#include "engine/sweep.h"

namespace kgfast {
namespace {

constexpr float kWordUnit = 1.0f / 256.0f;  // unit of products of words
constexpr int64_t kSums = kInt8Queries * kInt8Column;
constexpr int kParts = kInt8Column / Simd::W;  // vectors of a column

// Facts of a column of candidates, shared by all queries.
struct Column {
  V scale[kParts], error[kParts], bias[kParts];  // errors: for a slope of 1
  V high_error[kParts];  // errors of high bytes alone
  int64_t first;         // position of lane 0 among the candidates
  uint64_t valid;        // lanes that hold a candidate
};

// Returns the facts of a column, for sums in units of `unit` times 256 scales.
inline Column column_facts(const Int8Job& job, const PanelFacts& panel, const float* facts,
                           int64_t place, float unit) {
  const V up = Simd::set1(1.0f + 0x1p-20f);
  Column column;
  for (int p = 0; p < kParts; ++p) {
    const int64_t at = place + p * Simd::W;
    const V size = Simd::load(facts + 128 + at), low = Simd::load(facts + 192 + at);
    const V rest = Simd::fma(Simd::set1(job.rounding_share), size, Simd::load(facts + 64 + at));
    column.scale[p] = Simd::mul(Simd::load(facts + at), Simd::set1(unit));
    column.error[p] = Simd::mul(rest, up);
    column.bias[p] = Simd::load(panel.bias + at);
    column.high_error[p] = Simd::mul(Simd::add(low, rest), up);
  }
  column.first = panel.first + place;
  const int64_t left = std::clamp<int64_t>(panel.valid - place, 0, kInt8Column);
  column.valid = first_lanes(static_cast<int>(left));
  return column;
}

// Returns the costs of a query with a column, from its sums [16].
inline Costs<kParts> word_costs(const Int8Job& job, const Column& column, const Int8Query& query,
                                const int32_t* sums, float slope, const V (&error)[kParts]) {
  Costs<kParts> costs;
  costs.first = column.first;
  costs.valid = column.valid;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) {
    const V sum = Bytes::to_floats(Bytes::load_ints(sums + p * Simd::W));
    const V scaled = Simd::mul(sum, column.scale[p]);
    const V off = Simd::fma(Simd::set1(slope), error[p], Simd::set1(job.base));
    const V cost = Simd::product_minus(scaled, Simd::set1(query.scale), column.bias[p]);
    costs.low[p] = Simd::sub(cost, off);
    costs.high[p] = Simd::add(cost, off);
  }
  return costs;
}

// Answers for queries from `position` on.
__attribute__((noinline)) void take_words(const Int8Job& job, const Column& facts,
                                          int64_t position, int64_t queries,
                                          const int32_t* sums, Worker& worker) {
  const Column column = facts;
  const SweepJob& sweep = *job.sweep;
  const auto costs_of = [&](int64_t i) __attribute__((always_inline)) {
    const Int8Query& query = job.queries[i];
    return word_costs(job, column, query, sums + (i - position) * kInt8Column, query.slope,
                      column.error);
  };
  if (sweep.question == Question::count) {  // one loop, whose branches a machine foresees
    const Threshold* const end = sweep.thresholds + sweep.first_threshold[position + queries];
    for (const Threshold* t = sweep.thresholds + sweep.first_threshold[position]; t < end; ++t)
      count(sweep, *t, costs_of(t->position), worker);
  } else {
    for (int64_t i = position; i < position + queries; ++i) take(sweep, 0, i, costs_of(i), worker);
  }
}

// Answers for all queries by the sums of their high bytes, if these leave no pair open.
inline bool take_high(const Int8Job& job, const Column& column, const int32_t* sums,
                      Worker& worker) {
  const int64_t count = job.sweep->num_queries;
  Costs<kParts> costs[kInt8Queries];
  uint64_t open = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Int8Query& query = job.queries[i];
    costs[i] = word_costs(job, column, query, sums + i * kInt8Column, query.high_slope,
                          column.high_error);
    open |= open_lanes(*job.sweep, i, costs[i]);
  }
  for (int64_t i = 0; !open && i < count; ++i) take(*job.sweep, 0, i, costs[i], worker);
  return !open;
}

// Features of a row in whole steps of four; the rest of its last block is zero.
inline int64_t swept_features(int64_t features) { return (features + 3) / 4 * 4; }

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

// Sweeps a panel of words.
inline void sweep_words(const Int8Job& job, const PanelFacts& panel, const char* packed,
                        Worker& worker) {
  constexpr int Q = Bytes::queries, C = Bytes::columns;
  const int64_t features = job.sweep->num_features, padded = int8_padded(features);
  const int64_t queries = job.sweep->num_queries;
  const auto* facts = reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * padded);
  alignas(64) int32_t sums[C * kSums];
  for (int64_t first = 0; first < panel.valid; first += C * kInt8Column) {
    const auto* rows = reinterpret_cast<const int16_t*>(packed) + first * padded;
    Column columns[C];
    for (int64_t i = 0; i < C; ++i)
      columns[i] = column_facts(job, panel, facts, first + i * kInt8Column, kWordUnit);
    for (int64_t position = 0; position < queries; position += kInt8Queries) {
      const int64_t count = std::min(kInt8Queries, queries - position);
      const auto* tile = reinterpret_cast<const int16_t*>(job.tiles) + position * padded;
      for (int64_t i = 0; i < count; i += Q)
        word_products<Q, C>(rows, tile + word_query(i, padded), features, sums + i * kInt8Column);
      for (int64_t i = 0; i < C; ++i)
        take_words(job, columns[i], position, count, sums + i * kSums, worker);
    }
  }
}

// Reads high bytes first, for one tile of queries. Low bytes are read of columns alone of which the
// high bytes leave a pair open, which saves up to half of the memory.
inline void sweep_high(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                       Worker& worker) {
  const int64_t features = job.sweep->num_features, padded = int8_padded(features);
  const int64_t queries = job.sweep->num_queries;
  const int64_t facts_at = 2 * kInt8Candidates * padded;
  const auto* facts = reinterpret_cast<const float*>(place.packed + facts_at);
  const auto* tile = reinterpret_cast<const int16_t*>(job.tiles);
  alignas(64) int32_t sums[kSums], low[kSums];
  int64_t opened = 0;
  for (int64_t i = 0; i < kInt8Facts * kInt8Candidates * 4; i += 64)
    __builtin_prefetch(place.next + facts_at + i);
  for (int64_t first = 0; first < panel.valid; first += kInt8Column) {
    const char* next = place.next + first * padded;
    const auto* high = reinterpret_cast<const int8_t*>(place.packed) + first * padded;
    all_byte_products(high, tile, queries, features, next, sums);
    Column column = column_facts(job, panel, facts, first, 1.0f);
    if (take_high(job, column, sums, worker)) continue;
    ++opened;
    all_byte_products(high + kInt8Candidates * padded, tile, queries, features, nullptr, low);
    for (int64_t i = 0; i < queries * kInt8Column; ++i)
      sums[i] = static_cast<int32_t>(256u * static_cast<uint32_t>(sums[i]) +
                                     static_cast<uint32_t>(low[i]));
    for (V& scale : column.scale) scale = Simd::mul(scale, Simd::set1(kWordUnit));
    take_words(job, column, 0, queries, sums, worker);
  }
  pause_bytes(opened <= kInt8Candidates / kInt8Column / 2, worker.bytes_pause);
}

// Sweeps a packed panel: few queries of a panel of an index begin with its high bytes.
void sweep_int8_panel(const Int8Job& job, const Int8Panel& place, Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  const FloatMode mode(FloatMode::kIeee);
  const PanelFacts panel = panel_facts(sweep, kInt8Candidates, place.index);
  const bool counts = sweep.question == Question::count;
  const int64_t answers =
      counts ? sweep.first_threshold[sweep.num_queries] - sweep.first_threshold[0]
             : sweep.num_queries;
  const int64_t opened = worker.opened;
  const char* packed = place.packed;
  if (place.next && sweep.num_queries <= kInt8Queries && !worker.bytes_pause.left) {
    sweep_high(job, panel, place, worker);
  } else {
    if (place.next) {
      if (worker.bytes_pause.left) --worker.bytes_pause.left;
      join_bytes(packed, int8_padded(sweep.num_features), place.room);
      packed = place.room;
    }
    sweep_words(job, panel, packed, worker);
  }
  worker.pairs.swept += answers * panel.valid;
  worker.pairs.left += worker.opened - opened;
}

// Multiplies two rows in float32: a tree adds the sums of 64 chains.
inline void near_product(const float* q, const float* c, int64_t features, float* out) {
  V sums[kBlockVectors], of_q[2] = {Simd::zero(), Simd::zero()}, of_c[2] = {of_q[0], of_q[0]};
#pragma GCC unroll 16
  for (V& sum : sums) sum = Simd::zero();
  const auto add = [&](const float* x, const float* y) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlockVectors; ++i) {
      const V a = Simd::load(x + i * Simd::W), b = Simd::load(y + i * Simd::W);
      sums[i] = Simd::fma(a, b, sums[i]);
      of_q[i % 2] = Simd::fma(a, a, of_q[i % 2]);
      of_c[i % 2] = Simd::fma(b, b, of_c[i % 2]);
    }
  };
  int64_t k = 0;
  for (; k + kInt8Block <= features; k += kInt8Block) add(q + k, c + k);
  if (k < features) {
    alignas(64) float last[2][kInt8Block] = {};
    std::copy(q + k, q + features, last[0]);
    std::copy(c + k, c + features, last[1]);
    add(last[0], last[1]);
  }
  for (int half = kBlockVectors / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] = Simd::add(sums[i], sums[i + half]);
  out[0] = sum_of(sums[0]);
  out[1] = sum_of(Simd::add(of_q[0], of_q[1]));
  out[2] = sum_of(Simd::add(of_c[0], of_c[1]));
}

// Multiplies the rows of pairs. Rows lie anywhere in the table, so they are fetched before.
void near_products(const SweepJob& job, const Pair* pairs, int64_t count, float* scratch,
                   float* out) {
  const int64_t features = job.num_features;
  const bool is_direct = job.rows.view.is_plain();
  for (int64_t i = 0; i < count; ++i) {
    if (is_direct && i + kAhead < count)
      fetch(run_at<float>(job.rows.view, pairs[i + kAhead].candidate, 0, 0), features);
    near_product(row_floats(job.query, pairs[i].query, features, scratch),
                 row_floats(job.rows.view, pairs[i].candidate, features, scratch + features),
                 features, out + 3 * i);
  }
}

// Returns the tier; `features_per_cycle`: features of a pair that save a cycle against float32.
constexpr Int8Tier int8_tier(double features_per_cycle) {
  return {features_per_cycle,    pack_word_queries, pack_int8_panel<true>,
          pack_int8_panel<false>, sweep_int8_panel,  near_products};
}

}  // namespace
}  // namespace kgfast
