// Compiled with -mamx-tile, -mamx-int8 and what AVX-512 these machines have where the target is
// x86-64 and the compiler knows them, empty elsewhere; machine.cpp probes the machine, and asks the
// operating system for its tiles, before it calls in here.
#include "host/byte_rows.h"
#include "host/int8.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AVX512VBMI__)
#include "simd/avx512.h"

#include "engine/byte_rows.h"
#include "engine/int8_consumers.h"

namespace kgfast {

const Int8Tier* amx_tier() {
  static const Int8Tier tier = {begin_tiles,      end_tiles,        pack_int8_queries,
                                pack_int8_panel,  check_int8_panel, count_int8_panel,
                                keep_int8_panel,  record_int8_panel};
  return &tier;
}

const ByteTier* byte_tier() {
  static const ByteTier tier = {
      [](const SweepJob& job, int64_t panel, float scale, float* scratch, char* out) {
        with_byte_score(job.score, [&](auto score) {
          pack_byte_panel<decltype(score)>(job, panel, scale, scratch, out);
        });
      },
      [](const ByteJob& job, const TopkJob& topk, int64_t panel, TopkWorker& worker) {
        with_byte_score(topk.score, [&](auto score) {
          keep_byte_panel<decltype(score)>(job, topk, panel, worker);
        });
      },
      [](const ByteJob& job, int64_t panel, float* values, float* bounds) {
        with_byte_score(job.sweep->score, [&](auto score) {
          record_byte_panel<decltype(score)>(job, panel, values, bounds);
        });
      }};
  return &tier;
}

}  // namespace kgfast
#else
namespace kgfast {
const Int8Tier* amx_tier() { return nullptr; }
const ByteTier* byte_tier() { return nullptr; }
}  // namespace kgfast
#endif
