// Products of 2 x 2 tiles of bf16 numbers by AVX512-BF16.
//
// Cost model: 32 x 32 sums of 32 terms are 1,024 `vdpbf16ps` of 32 products, 512 broadcasts and 128
// loads: 8 rows and 2 columns of tiles are 16 registers of sums.
//
// Errors: those of float32 sums. The second of each two terms is added first, each rounded once.
#pragma once
#include <cstring>

#include "engine/bf16_tiles.h"

namespace kgfast {
namespace {

// Stand-ins for functions of AMX: vectors need no tiles, and gcc sees the memory that they read.
struct Products {};
inline void publish() {}

constexpr int64_t kSumRows = 8;  // rows of sums in registers

inline __m512bh words_at(const uint16_t* numbers) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(numbers));
}

inline __m512bh every_pair(const uint16_t* pair) {
  int32_t word;
  std::memcpy(&word, pair, sizeof word);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

// Adds kSumRows rows of a left tile with both right tiles to the sums.
inline void add_rows(const uint16_t* left, TilesOf right, int64_t depth, float* sums,
                     int64_t right_sums, bool is_first) {
  V held[kSumRows][2];
#pragma GCC unroll 8
  for (int64_t row = 0; row < kSumRows; ++row) {
    held[row][0] = is_first ? Simd::zero() : Simd::load(sums + row * kTileRows);
    held[row][1] = is_first ? Simd::zero() : Simd::load(sums + right_sums + row * kTileRows);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const TilesOf here = right.at(k);
    const uint16_t* rows = left + k * kTileNumbers;
    for (int64_t pair = 0; pair < kTileRows; ++pair) {
      const __m512bh first = words_at(here.first + pair * kTilePair);
      const __m512bh second = words_at(here.second + pair * kTilePair);
#pragma GCC unroll 8
      for (int64_t row = 0; row < kSumRows; ++row) {
        const __m512bh factor = every_pair(rows + row * kTilePair + 2 * pair);
        held[row][0] = _mm512_dpbf16_ps(held[row][0], factor, first);
        held[row][1] = _mm512_dpbf16_ps(held[row][1], factor, second);
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t row = 0; row < kSumRows; ++row) {
    Simd::store(sums + row * kTileRows, held[row][0]);
    Simd::store(sums + right_sums + row * kTileRows, held[row][1]);
  }
}

// Adds a product to the sums, or sets them if it is the first.
inline void add_product(TilesOf left, TilesOf right, int64_t depth, const SumTiles& at,
                        bool is_first) {
  for (int64_t row = 0; row < kTileRows; row += kSumRows) {
    float* sums = at.sums + row * kTileRows;
    add_rows(left.first + row * kTilePair, right, depth, sums, at.right, is_first);
    add_rows(left.second + row * kTilePair, right, depth, sums + at.left, at.right, is_first);
  }
}

// Makes a product; other work does not run between, as it would take the same units.
template <class Between>
void make_product(TilesOf left, TilesOf right, int64_t depth, const SumTiles& sums, Between) {
  add_product(left, right, depth, sums, true);
}

}  // namespace
}  // namespace kgfast
