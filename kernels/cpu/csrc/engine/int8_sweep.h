// Distances of a query and a column of 16 candidates by sums of whole numbers, the bound on their
// errors, and the high bytes that few queries read first.
//
// One of int8_words.h and int8_bytes.h, the engines, makes the sums; a consumer (int8_consumers.h)
// takes the sums of a run of queries and a column at a time.
#pragma once
#include "engine/int8_pack.h"
#include "engine/sweep.h"

namespace kgfast {
namespace {

constexpr int64_t kSums = kInt8Queries * kInt8Column;
constexpr int kParts = kInt8Column / Simd::W;  // vectors of a column

inline void fetch_bytes(const char* first, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(first + i);
}

// Facts of a column of candidates, shared by all queries.
struct Int8Facts {
  V scale[kParts], error[kParts], size[kParts], bias[kParts];  // errors: for a slope of 1
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
    found.size[p] = size;
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

// True if there are so few queries that they read the high bytes of a panel first.
inline bool begins_high(const Int8Job& job, const Int8Panel& place, BytesPause& pause) {
  if (!place.next || job.sweep->num_queries > kInt8Queries) return false;
  return pause.left ? (--pause.left, false) : true;
}

}  // namespace
}  // namespace kgfast
