// AMX's tiles: eight registers of 16 rows of 64 bytes.
#pragma once
#include <algorithm>
#include <cstdint>

namespace kgfast {
namespace {

// Makes earlier writes visible to loads of tiles, whose memory gcc does not see.
inline void publish() { asm volatile("" ::: "memory"); }

// Takes the machine's tiles: two whole ones, and six of so many rows.
inline void begin_tiles(int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  for (int tile = 0; tile < 6; ++tile)
    config.rows[tile] = static_cast<uint8_t>(std::min<int64_t>(rows, 16));
  publish();
  _tile_loadconfig(&config);
}

inline void end_tiles() { _tile_release(); }

// Scope with whole tiles.
class Tiles {
 public:
  Tiles() { begin_tiles(16); }
  ~Tiles() { end_tiles(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace
}  // namespace kgfast
