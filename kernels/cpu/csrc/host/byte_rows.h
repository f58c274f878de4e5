// Rows as bytes, for few queries that ask for the best k by a distance. Bytes take a quarter of the
// memory, and show that most candidates are too far.
//
// A row is x = s X + r: s is one scale of a table, X are whole numbers of a byte, and r is the
// rest, which packing measures. docs/explanation/exactness.md has the bound.
//
// Layout of a panel (64 candidates, P planes of K numbers, which are a multiple of 8, zeros at the
// end):
//   uint8 bytes [8 columns][P][K / 8][8 candidates][8 numbers]: X + 128
//   float moved [64]: upper bounds of |r|
// Plain data, like job.h.
#pragma once
#include "host/job.h"

namespace kgfast {

constexpr int64_t kByteCandidates = 64, kByteColumn = 8;  // sizes of a panel, and of a part of it
constexpr int64_t kByteRun = 8;                           // numbers of a candidate side by side
constexpr int64_t kByteQueries = 16;                      // queries of a pass, at most
constexpr int kByteMost = 127;                            // the largest |X|

namespace {

inline int64_t byte_padded(int64_t features) {
  return (features + kByteRun - 1) / kByteRun * kByteRun;
}
// Bytes of a packed row, whose last vector of numbers is whole.
inline int64_t byte_scratch(int64_t features) { return byte_padded(features) + kByteRun; }
inline int64_t byte_panel_bytes(int64_t features, int planes) {
  return kByteCandidates *
         (planes * byte_padded(features) + static_cast<int64_t>(sizeof(float)));
}

}  // namespace

struct ByteJob {
  const SweepJob* sweep;
  const uint8_t* queries;  // [Q][P][K]: X + 128
  const float* moved;      // [Q]: upper bounds of |r|
};

// One way to sum bytes of distances.
struct ByteTier {
  // Packs a panel of finite rows. Scratch: a row.
  void (*pack_panel)(const SweepJob&, int64_t panel, float scale, float* scratch, char* out);
  // Sweeps a packed panel for up to kByteQueries queries.
  void (*sweep_panel)(const ByteJob&, int64_t panel, Worker&);
};

}  // namespace kgfast
