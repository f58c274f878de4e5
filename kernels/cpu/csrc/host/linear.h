// The linear tier of distances: a product of bytes that proves candidates to be past the targets.
//
// For vectors u_k of a query, each at most 1 long, sum_k |q_k - c_k| >= <U, q> - <U, c>. Here U is
// a / m, of whole numbers a and the tier's `most` m. Also c is s (X + r), of whole numbers X and
// the rounding r, which is measured. So <a, X> is an exact product of bytes. The bound:
// docs/explanation/exactness.md.
//
// Layout of a panel (128 candidates, K numbers: planes one after the other, each of whole
// kLinearRun):
//   uint8 bytes [K / 4][128 candidates][4 numbers]: X + 128
// with room for whole transposes at the end, and of queries, 4 of which are a tile:
//   int8 a [queries][K]
// Zeros follow the last query. Plain data, like job.h.
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

// Pairs that the product swept. In tiles that the tier finished: pairs that the product decided,
// pairs gathered to float32, and the gathered pairs that canonical scores decided.
struct LinearPairs {
  int64_t swept, decided, gathered, canonical;
};

struct LinearJob {
  const SweepJob* sweep;
  int64_t numbers;         // K
  const int8_t* queries;   // bytes of job.query_ids
  const int32_t* offsets;  // [tiles][kLinearQueries]: -128 times the sum of a
  const float* limits;     // [tiles][kLinearQueries]: past all targets if s <a, X> + error is less
  const uint8_t* serves;   // [tiles]: whether the tier sweeps the tile
  int64_t afford;          // pairs of a tile that may be gathered instead of swept
};

struct LinearWorker : Gathering {
  uint8_t* bytes;         // the present panel, and room for whole transposes
  uint8_t* row_bytes;     // [16][numbers]
  float *scales, *errors;  // [kLinearLanes]: s / m; what is added to a product, infinite where
                           // numbers did not fit
  uint8_t* done;          // [tiles]: whether all pairs of the panel are decided
  int64_t* could;         // [tiles]: panels of the sample that the tier would finish
  int64_t decided;
};

// Costs in units of one term of the float32 sweep.
struct LinearCosts {
  double term, pair;                    // costs of the product
  double gathered_term, gathered_pair;  // costs of pairs that the product leaves open
};

struct LinearTier {
  int most;  // the largest |a_k|, which is |u_k| = 1
  // Returns the costs of a score; `term` is 0 where the tier does not serve the score.
  LinearCosts (*costs)(ScoreId);
  // Packs a panel, and notes the first bad rows in the wide worker.
  void (*pack_panel)(const SweepJob&, int64_t panel, LinearWorker&);
  // Decides the pairs of a packed panel in tiles with few open pairs, and marks these in `done`.
  void (*sweep_panel)(const LinearJob&, int64_t panel, LinearWorker&);
  // Counts in `could` the tiles that sweep_panel would mark.
  void (*try_panel)(const LinearJob&, int64_t panel, LinearWorker&);
  // Writes s <a, X> + error of a packed panel, [tiles][kLinearQueries][kLinearLanes]: for tests.
  void (*panel_values)(const LinearJob&, LinearWorker&, float* out);
};

}  // namespace kgfast
