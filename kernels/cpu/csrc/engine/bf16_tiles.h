// Places of 2 x 2 tiles of bf16 numbers and of their sums, and all tiles of a worker. bf16_amx.h
// and bf16_vector.h multiply these tiles.
#pragma once
#include "host/bf16_loss.h"
#include "scores/common.h"

namespace kgfast {
namespace {

// Two tiles; each is followed by its tiles of the next terms.
struct TilesOf {
  const uint16_t *first, *second;
  TilesOf at(int64_t k) const { return {first + k * kTileNumbers, second + k * kTileNumbers}; }
};

// Place of 2 x 2 tiles of sums: floats from one tile to the next, on the left and on the right.
struct SumTiles {
  float* sums;
  int64_t left, right;
};

// Memory of a worker.
struct Bf16Room {
  uint16_t *left;      // [block / 16][features / 32] tiles of candidates, for scores
  uint16_t *turned;    // [features / 16][block / 32] tiles of candidates, for queries' gradient
  uint16_t *by_rows;   // [block / 16][columns / 32] tiles of slopes
  uint16_t *by_pairs;  // [columns / 16][block / 32] tiles of slopes
  float* gradient;     // [block / 16][features / 16] tiles of sums
  float* scores;       // [2][4] tiles of sums
  float* bias;         // [block]
  float* bias_sums;    // [block][16]
  float* shifts;       // [queries]: subtracted from scores before exponentials
  float* rows;         // [32][features]
  int64_t floats;

  Bf16Room(const Bf16Shape& shape, float* scratch) : floats(0) {
    const auto take = [&](int64_t count) {
      float* from = scratch + floats;
      floats += count;
      return from;
    };
    const auto numbers = [&](int64_t count) {
      return reinterpret_cast<uint16_t*>(take(count / 2));
    };
    left = numbers(shape.block * shape.features);
    turned = numbers(shape.block * shape.features);
    by_rows = numbers(shape.block * shape.columns);
    by_pairs = numbers(shape.block * shape.columns);
    gradient = take(shape.block * shape.features);
    scores = take(8 * kTileSums);
    bias = take(shape.block);
    bias_sums = take(shape.block * kTileRows);
    shifts = take(shape.queries);
    rows = take(kTilePair * shape.features);
  }
};

inline int64_t bf16_scratch(const Bf16LossJob& job) { return Bf16Room(job.shape, nullptr).floats; }

}  // namespace
}  // namespace kgfast
