// Products of 2 x 2 tiles of bf16 numbers by AMX.
//
// Cost model: 32 x 32 sums of 32 terms are 4 tile products of 16 cycles and 4 tile loads. Longer
// sums are loaded and stored once for each part of their terms.
//
// Errors: those of float32 sums. The even and the odd terms of each 32 are summed apart.
#pragma once
#include "engine/bf16_tiles.h"
#include "engine/tiles.h"

namespace kgfast {
namespace {

using Products = Tiles;  // lives while products are made

inline void add_tiles(TilesOf left, TilesOf right) {
  _tile_loadd(4, left.first, 64);
  _tile_loadd(6, right.first, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, right.second, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, left.second, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const SumTiles& at) {
  _tile_loadd(0, at.sums, 64);
  _tile_loadd(1, at.sums + at.right, 64);
  _tile_loadd(2, at.sums + at.left, 64);
  _tile_loadd(3, at.sums + at.left + at.right, 64);
}

inline void store_sums(const SumTiles& at) {
  _tile_stored(0, at.sums, 64);
  _tile_stored(1, at.sums + at.right, 64);
  _tile_stored(2, at.sums + at.left, 64);
  _tile_stored(3, at.sums + at.left + at.right, 64);
}

// Adds a product to the sums, or sets them if it is the first.
inline void add_product(TilesOf left, TilesOf right, int64_t depth, const SumTiles& sums,
                        bool is_first) {
  is_first ? clear_sums() : load_sums(sums);
  for (int64_t k = 0; k < depth; ++k) add_tiles(left.at(k), right.at(k));
  store_sums(sums);
}

// Makes a product; `between` does other work while the tiles are busy, `depth` times.
template <class Between>
void make_product(TilesOf left, TilesOf right, int64_t depth, const SumTiles& sums,
                  Between between) {
  clear_sums();
  for (int64_t k = 0; k < depth; ++k) {
    add_tiles(left.at(k), right.at(k));
    between();
  }
  store_sums(sums);
}

}  // namespace
}  // namespace kgfast
