// The int8 tier of dot products: rows as pairs of bytes, products and sums of integers, exactly.
// AMX sums products of bytes, other machines products of the words that pairs of bytes make.
//
// A row x is s (X + r): a scale, whole numbers X = 256 H + L of two signed bytes each, and what
// rounding left, |r_k| <= 1/2. A product of rows is s s' (65536 H.H' + 256 (H.L' + L.H')) but for
// what the norms of L, r and x bound; docs/explanation/exactness.md has the bound.
//
// Layout of a panel (64 candidates, K features, which are a multiple of 64, zeros at the end):
//   int8 high [4 columns][K / 64][16 groups of features][16 candidates][4 features]
//   int8 low  the same
//   float facts [4][64]: 256 s; upper bounds of s |r|, |x| and s |L|
// and of a tile of 16 queries for AMX:
//   int8 high [K / 64][16 queries][64 features]
//   int8 low  the same
// so that every [16][64] of them is a tile of AMX. engine/int8_words.h has the layouts of words, of
// the same size, and engine/int8_bytes.h those of one byte a number. Plain data, like job.h.
#pragma once
#include "host/tiers.h"
#include "host/topk.h"

namespace kgfast {

constexpr int64_t kInt8Candidates = 64, kInt8Column = 16;  // sizes of a panel, and of a tile in it
constexpr int64_t kInt8Queries = 16;                       // queries of a tile
constexpr int64_t kInt8Block = 64;                         // features of a tile
constexpr int64_t kInt8Facts = 4;                          // facts of a candidate
constexpr int64_t kInt8MostFeatures = 4096;                // a panel stays in the cache

namespace {

inline int64_t int8_padded(int64_t features) {
  return (features + kInt8Block - 1) / kInt8Block * kInt8Block;
}
inline int64_t int8_panel_bytes(int64_t features) {
  return kInt8Candidates * (2 * int8_padded(features) +
                            kInt8Facts * static_cast<int64_t>(sizeof(float)));
}
inline int64_t int8_tile_bytes(int64_t features) {
  return kInt8Queries * 2 * int8_padded(features);
}

// Bytes that packing needs: a column of rows before it is transposed, and rows that are not plain
// float32.
inline int64_t int8_scratch_bytes(int64_t features) {
  return kInt8Column * int8_padded(features) * (2 + static_cast<int64_t>(sizeof(float)));
}

}  // namespace

// A query, in units of its scale: |v^ - v| <= size * (s |r|) + rounding * |x| + low * (s |L|) of a
// candidate, beside what a threshold adds. With shares that a pass has for all its queries this is
// at most slope * (s |r| + share * |x| + low share * (s |L|)).
struct Int8Query {
  float scale, inverse;  // s and 1 / s
  float size, rounding, low;
  float slope;
  float high_slope;  // slope of the high bytes alone: times s |r| + share * |x| + s |L|
};

// A target of query `position`, likewise: what is added to the error, of numbers that are compared.
struct Int8Target {
  int64_t slot;
  uint32_t position;
  float minus_target, base;
  Int8Query query;
};

struct Int8Job {
  const SweepJob* sweep;
  const int8_t* tiles;              // bytes or words of job.query_ids
  const Int8Query* queries;         // [Q]
  const float* floats;              // [Q][padded features] of job.query_ids, in the order of tiles
  float rounding_share, low_share;
  float near;                       // the float32 product of a pair errs by near |q| |c|
  const Int8Target* targets;        // the targets of sweep->thresholds, for ranks
  const float* base;                // [Q], for the best k
};

// A packed panel.
struct Int8Panel {
  int64_t index;
  const char* packed;
  const char* next;  // the panel of an index that is read after it; nullptr: packed for this call
  char* room;        // for the joined bytes of a panel of an index
  int64_t ahead;     // the panel that is packed after it by the same worker, or -1
};

// One way to pack the rows of a call, and to sum their products.
struct Int8Rows {
  // Packs the queries of job.query_ids into tiles, floats and facts; in tiles, zeros follow the
  // last.
  void (*pack_queries)(const SweepJob&, int8_t* tiles, float* floats, Int8Query* queries);
  // Packs a panel, and notes rows that are not finite.
  void (*pack_panel)(const SweepJob&, int64_t panel, char* scratch, char* out, Worker&);
  // Counts the pairs of a packed panel that the bound decides, or float32 after it, and collects
  // the others. Scratch: a row.
  void (*count_panel)(const Int8Job&, const Int8Panel&, char* scratch, const Isa&, Worker&);
  // The tier's own first values of a packed panel and their bounds, [Q][64] each: for tests.
  void (*panel_values)(const Int8Job&, const Int8Panel&, float* values, float* bounds);
};

// A tier: bytes and words of rows, and what it takes.
struct Int8Tier {
  const char* format;  // names panels of an index; all have one layout, not one scale of rows
  double (*saving)(int64_t features);  // cycles of a pair, against float32
  double packing;                      // cycles of a candidate, beyond float32's
  // Takes what the sweeps of panels below need of the machine, for so many queries, and gives it
  // back.
  void (*begin)(int64_t queries);
  void (*end)();
  Int8Rows rows;
  // Rows of one byte a number, which many queries try before these; nullptr: none.
  const Int8Rows* first;
  // Packs a panel of an index, and notes rows that are not finite.
  void (*pack_panel)(const SweepJob&, int64_t panel, char* scratch, char* out, Worker&);
  // Notes rows that are not finite, of a panel that was packed before.
  void (*check_panel)(const SweepJob&, int64_t panel, const char* packed, Worker&);
  // Keeps the candidates of a packed panel that may be among the best k.
  void (*keep_panel)(const Int8Job&, const TopkJob&, const Int8Panel&, TopkWorker&);
};

}  // namespace kgfast
