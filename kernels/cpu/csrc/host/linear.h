// The linear tier of distances: a product of bytes that proves candidates to be past the targets.
//
// With vectors u_k of a query that are no longer than 1, sum_k |q_k - c_k| >= <U, q> - <U, c>. Here
// U = a / m, whole numbers, m the tier's `most`; c = s (X + r), whole numbers and what rounding
// left, which is measured. So the product <a, X> is one of bytes, exactly. Its bound:
// docs/explanation/exactness.md.
//
// Layout of a panel (128 candidates, K numbers: planes one after the other, each of whole
// kLinearRun):
//   uint8 bytes [K / 4][128 candidates][4 numbers]: X + 128
// with room for whole transposes at the end, and of queries, 4 of which are a tile:
//   int8 a [queries][K]
// Past the last query come zeros. Plain data, like job.h.
#pragma once
#include "host/gather.h"

namespace kgfast {

constexpr int kLinearLanes = kGatherLanes;
constexpr int kLinearQueries = 4;     // queries of a tile, as in the other sweeps of distances
constexpr int64_t kLinearGroup = 4;   // numbers that one instruction adds up
constexpr int64_t kLinearRun = 16;    // numbers that are packed at a time
constexpr int kLinearByte = 127;      // the largest |X|

constexpr int64_t linear_features(int64_t features) {
  return (features + kLinearRun - 1) / kLinearRun * kLinearRun;
}

// Bytes of a row while it is packed: whole transposes.
constexpr int64_t linear_row_bytes(int64_t numbers) { return (numbers + 63) / 64 * 64; }

// Pairs whose product was taken; of those, in tiles that were left to it, decided by it and
// gathered to float32, and of these decided by canonical scores.
struct LinearPairs {
  int64_t swept, decided, gathered, canonical;
};

struct LinearJob {
  const SweepJob* sweep;
  int64_t numbers;         // K
  const int8_t* queries;   // bytes of job.query_ids
  const int32_t* offsets;  // [tiles][kLinearQueries]: -128 times the sum of a
  const float* limits;     // likewise: where s <a, X> + error is below, all targets are passed
  const uint8_t* serves;   // [tiles]: whether the tier sweeps it
  int64_t afford;          // pairs of a tile that are gathered rather than swept
};

struct LinearWorker : Gathering {
  uint8_t* bytes;         // the present panel, and room for whole transposes
  uint8_t* row_bytes;     // [16][numbers]
  float *scales, *errors;  // [kLinearLanes]: s / m; what is added to a product, infinite where
                           // numbers did not fit
  uint8_t* done;          // [tiles]: whether all pairs of the panel are decided
  int64_t* could;         // [tiles]: panels of the sample of which that holds
  int64_t decided;
};

// Costs in terms of the float32 sweep.
struct LinearCosts {
  double term, pair;                    // costs of the product
  double gathered_term, gathered_pair;  // costs of pairs that it leaves open
};

struct LinearTier {
  int most;  // the largest |a_k|, which is |u_k| = 1
  // Costs of a score; no term where the tier does not serve it.
  LinearCosts (*costs)(ScoreId);
  // Packs a panel; the wide worker's first bad rows are noted.
  void (*pack_panel)(const SweepJob&, int64_t panel, LinearWorker&);
  // Decides the pairs of a packed panel, tile by tile, where it leaves few open, and says where.
  void (*sweep_panel)(const LinearJob&, int64_t panel, LinearWorker&);
  // Counts the tiles of which that holds.
  void (*try_panel)(const LinearJob&, int64_t panel, LinearWorker&);
  // s <a, X> + error of a packed panel, [tiles][kLinearQueries][kLinearLanes]: for tests.
  void (*panel_values)(const LinearJob&, LinearWorker&, float* out);
};

}  // namespace kgfast
