// The int8 tier of dot products: rows are pairs of bytes, which make words; products and sums of
// words are exact integers.
//
// A row x is s (X + r): s is a scale, X = 256 H + L are whole numbers of two signed bytes each, and
// r is the rounding, |r_k| <= 1/2: docs/explanation/exactness.md.
//
// Layout of a panel of an index (64 candidates, K features, which are a multiple of 64, zeros at
// the end):
//   int8 high [4 columns][K / 64][16 groups of features][16 candidates][4 features]
//   int8 low  the same
//   float facts [4][64]: 256 s; upper bounds of s |r|, |x| and s |L|
// engine/int8_sweep.h has the layouts of words, in as many bytes. Plain data, like job.h.
#pragma once
#include "host/job.h"

namespace kgfast {

constexpr int64_t kInt8Candidates = 64, kInt8Column = 16;  // sizes of a panel, and of a tile in it
constexpr int64_t kInt8Queries = 16;                       // queries of a tile
constexpr int64_t kInt8Block = 64;                         // features of a block
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

// Returns the bytes that packing needs: a column of rows before its transpose, and float32 copies
// of rows.
inline int64_t int8_scratch_bytes(int64_t features) {
  return kInt8Column * int8_padded(features) * (2 + static_cast<int64_t>(sizeof(float)));
}

}  // namespace

// A query. For a candidate, |v^ - v| <= scale * (size * (s |r|) + rounding * |x|), beside what
// comparing adds. With the share of a pass, this is at most slope * (s |r| + share * |x|).
struct Int8Query {
  float scale;  // s
  float size, rounding;
  float slope;
  float high_slope;  // slope of the high bytes: times s |r| + share * |x| + s |L|
};

struct Int8Job {
  const SweepJob* sweep;
  const int8_t* tiles;       // words of job.query_ids
  const Int8Query* queries;  // [Q]
  float rounding_share;
  float base;  // the error that comparing adds
};

// A packed panel.
struct Int8Panel {
  int64_t index;
  const char* packed;
  const char* next;  // the next panel of an index; nullptr: panels are packed for this call
  char* room;        // for the joined bytes of a panel of an index
};

// One instruction set's kernels.
struct Int8Tier {
  double features_per_cycle;  // features of a pair that save a cycle, against float32
  // Packs the queries of job.query_ids into tiles and facts; zeros fill up the last tile.
  void (*pack_queries)(const SweepJob&, int8_t* tiles, Int8Query* queries);
  // Packs a panel for this call, or of an index, and notes rows that are not finite.
  void (*pack_words)(const SweepJob&, int64_t panel, char* scratch, char* out, Worker&);
  void (*pack_panel)(const SweepJob&, int64_t panel, char* scratch, char* out, Worker&);
  void (*sweep_panel)(const Int8Job&, const Int8Panel&, Worker&);
  // Writes the float32 products of pairs, each with both sums of squares. Scratch: two rows.
  void (*near)(const SweepJob&, const Pair*, int64_t count, float* scratch, float* out);
};

}  // namespace kgfast
