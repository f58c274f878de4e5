// Compiled with -mamx-tile, -mamx-int8 and what AVX-512 these machines have where the target is
// x86-64 and the compiler knows them, empty elsewhere; machine.cpp probes the machine, and asks the
// operating system for its tiles, before it calls in here.
#include "host/int8.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AVX512VBMI__)
#include "simd/avx512.h"

#include "engine/int8_consumers.h"

namespace kgfast {

const Int8Tier* amx_tier() {
  static const Int8Tier tier = {begin_tiles,      end_tiles,        pack_int8_queries,
                                pack_int8_panel,  check_int8_panel, count_int8_panel,
                                keep_int8_panel,  record_int8_panel};
  return &tier;
}

}  // namespace kgfast
#else
namespace kgfast {
const Int8Tier* amx_tier() { return nullptr; }
}  // namespace kgfast
#endif
