// Sums of products of bytes by AMX: a panel of 64 candidates against tiles of 16 queries.
//
// A consumer (int8_consumers.h) takes the sums of a query and a column of candidates at a time.
//
// Cost model: 16 queries x 32 candidates x 64 features are 6 tile products of 16 cycles and 6 tile
// loads; 512 sums are then stored, and cost 12 vector instructions for 16 pairs: for 256 features
// 21 cycles for 16 pairs (measured), where float32 takes 128. The sums of the last tile are
// compared between the products of the next, as the machine looks ahead by no more instructions
// than a block's loads are. The sums of the next tile are stored after these comparisons, as loads
// wait for earlier stores whose addresses agree in 12 bits.
//
// Few queries wait for the memory: from ready panels they read the high bytes first, then the low
// bytes of columns that the high bytes leave open. One query with 40,943 candidates of 256
// features, from the third-level cache: 0.5 ms, where both bytes take 0.9 and one read of them 0.8.
#pragma once
#include "engine/int8_sweep.h"
#include "engine/tiles.h"

namespace kgfast {
namespace {

// Sums of one tile of queries and two columns of candidates: of H.H', and of H.L' + L.H'.
struct Int8Products {
  alignas(64) int32_t high[2][kSums], mixed[2][kSums];
};

// Adds products of one block of features to tiles 0 to 3: a tile of queries and the high bytes of
// two columns of candidates. Low bytes of the queries are `query_low` bytes further on.
inline void add_high_products(const int8_t* queries, int64_t query_low, const int8_t* candidates,
                              const int8_t* second) {
  _tile_loadd(4, queries, kInt8Block);
  _tile_loadd(6, candidates, kInt8Block);
  _tile_dpbssd(0, 4, 6);
  _tile_loadd(7, second, kInt8Block);
  _tile_dpbssd(2, 4, 7);
  _tile_loadd(5, queries + query_low, kInt8Block);
  _tile_dpbssd(1, 5, 6);
  _tile_dpbssd(3, 5, 7);
}

// Adds products of both bytes.
inline void add_products(const int8_t* queries, int64_t query_low, const int8_t* candidates,
                         const int8_t* second, int64_t candidate_low) {
  add_high_products(queries, query_low, candidates, second);
  _tile_loadd(6, candidates + candidate_low, kInt8Block);
  _tile_dpbssd(1, 4, 6);
  _tile_loadd(7, second + candidate_low, kInt8Block);
  _tile_dpbssd(3, 4, 7);
}

// Adds the products of a column's low bytes to the column's mixed products.
inline void add_low_products(const int8_t* queries, const int8_t* candidates, int64_t blocks,
                             int32_t* mixed) {
  constexpr int64_t block = kInt8Column * kInt8Block;
  publish();
  _tile_loadd(1, mixed, 64);
  for (int64_t i = 0; i < blocks; ++i) {
    _tile_loadd(4, queries + i * block, kInt8Block);
    _tile_loadd(6, candidates + i * block, kInt8Block);
    _tile_dpbssd(1, 4, 6);
  }
  _tile_stored(1, mixed, 64);
  publish();
}

inline void clear_products() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void store_products(Int8Products* sums) {
  _tile_stored(0, sums->high[0], 64);
  _tile_stored(1, sums->mixed[0], 64);
  _tile_stored(2, sums->high[1], 64);
  _tile_stored(3, sums->mixed[1], 64);
}

// Sums of a run of queries and a column, [queries][16] each.
struct AmxSums {
  const int32_t *high, *mixed;
  V at(int64_t i) const {
    return Simd::fma(Bytes::to_floats(Bytes::load_ints(high + i)), Simd::set1(256.0f),
                     Bytes::to_floats(Bytes::load_ints(mixed + i)));
  }
};

constexpr int64_t kRun = 8;  // queries that are worth a call

struct AmxEngine {
  // Calls take(position, count, column facts, sums) for runs of a tile's queries and every column
  // of a packed panel. Runs of the last tile are taken after each block of the next tile.
  template <class Take>
  static void sweep(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                               Take take) {
    constexpr int64_t block = kInt8Column * kInt8Block;
    const int64_t padded = int8_padded(job.sweep->num_features), queries = job.sweep->num_queries;
    const int64_t blocks = padded / kInt8Block, query_low = kInt8Queries * padded;
    const auto* facts = reinterpret_cast<const float*>(place.packed + 2 * kInt8Candidates * padded);
    const FloatMode mode(FloatMode::kIeee);
    Int8Products sums;
    if (place.next)
      fetch_bytes(place.next + 2 * kInt8Candidates * padded, kInt8Facts * kInt8Candidates * 4);
    for (int64_t first = 0; first < panel.valid; first += 2 * kInt8Column) {
      const char* next = first ? place.next : place.packed + 2 * kInt8Column * padded;
      const auto* candidates = reinterpret_cast<const int8_t*>(place.packed) + first * padded;
      const auto* second = candidates + kInt8Column * padded;
      const Int8Facts columns[2] = {column_facts(job, panel, facts, first, 1.0f),
                                    column_facts(job, panel, facts, first + kInt8Column, 1.0f)};
      for (int64_t position = 0; position < queries + kInt8Queries; position += kInt8Queries) {
        const bool multiplies = position < queries;
        const int64_t last = position - kInt8Queries;  // the tile whose sums are stored
        const int64_t count = last < 0 ? 0 : std::min(kInt8Queries, queries - last);
        if (multiplies) clear_products();
        for (int64_t i = 0, done = 0; i < blocks; ++i) {
          if (place.next && position == 0)
            for (int64_t at = 0; at < 2 * block; at += block) {
              fetch_bytes(next + i * block + at * blocks, block);
              fetch_bytes(next + i * block + at * blocks + kInt8Candidates * padded, block);
            }
          if (multiplies)
            add_products(job.tiles + position * 2 * padded + i * block, query_low,
                         candidates + i * block, second + i * block, kInt8Candidates * padded);
          const int64_t due = i + 1 < blocks ? (i + 1) * 2 * count / blocks & -kRun : 2 * count;
          while (done < due) {  // in the order of columns, then queries
            const int64_t column = done >= count, row = done - column * count;
            const int64_t run = std::min(due - done, count - row);
            const int64_t from = row * kInt8Column;
            take(last + row, run, columns[column],
                 AmxSums{sums.high[column] + from, sums.mixed[column] + from});
            done += run;
          }
        }
        if (multiplies) store_products(&sums);
      }
    }
  }

  // Reads high bytes first, for one tile of queries. decide(column facts, sums of H.H' and L.H')
  // returns true if the high bytes leave no pair of a column open. Other columns go to `take`, as
  // in `sweep`. Only these columns' low bytes are read, which saves up to half of the memory.
  template <class Decide, class Take>
  static void sweep_high(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                               BytesPause& pause, Decide decide, Take take) {
    constexpr int64_t block = kInt8Column * kInt8Block;
    const int64_t padded = int8_padded(job.sweep->num_features), queries = job.sweep->num_queries;
    const int64_t blocks = padded / kInt8Block, column_bytes = kInt8Column * padded;
    const int64_t facts_at = 2 * kInt8Candidates * padded;
    const auto* facts = reinterpret_cast<const float*>(place.packed + facts_at);
    const FloatMode mode(FloatMode::kIeee);
    Int8Products sums;
    int64_t opened = 0;
    fetch_bytes(place.next + facts_at, kInt8Facts * kInt8Candidates * 4);
    for (int64_t first = 0; first < panel.valid; first += 2 * kInt8Column) {
      const char* high = place.packed + first * padded;
      const char* next = first ? place.next : high + 2 * column_bytes;
      clear_products();
      for (int64_t i = 0; i < blocks; ++i) {
        fetch_bytes(next + i * block, block);
        fetch_bytes(next + column_bytes + i * block, block);
        add_high_products(job.tiles + i * block, kInt8Queries * padded,
                          reinterpret_cast<const int8_t*>(high) + i * block,
                          reinterpret_cast<const int8_t*>(high) + column_bytes + i * block);
      }
      store_products(&sums);
      publish();
      for (int64_t i = 0; i < 2 && first + i * kInt8Column < panel.valid; ++i) {
        const Int8Facts column = column_facts(job, panel, facts, first + i * kInt8Column, 1.0f);
        const AmxSums found{sums.high[i], sums.mixed[i]};
        if (decide(column, found)) continue;
        ++opened;
        add_low_products(job.tiles,
                         reinterpret_cast<const int8_t*>(high) + i * column_bytes +
                             kInt8Candidates * padded,
                         blocks, sums.mixed[i]);
        take(int64_t{0}, queries, column, found);
      }
    }
    pause_bytes(opened <= kInt8Candidates / kInt8Column / 2, pause);
  }
};

void pack_amx_queries(const SweepJob& job, int8_t* tiles, float* floats, Int8Query* queries) {
  const int64_t features = job.num_features, padded = int8_padded(features);
  const auto pack = [&](const float* row, int8_t* tile, int i, Int8Sums* sums) {
    int8_t* high = tile + i * kInt8Block;
    BytesOut to(high, high + kInt8Queries * padded, kInt8Queries * kInt8Block);
    pack_row(row, features, kPairLimits, to, i, sums);
  };
  pack_query_tiles(job, tiles, floats, queries, true, pack);
}

}  // namespace
}  // namespace kgfast
