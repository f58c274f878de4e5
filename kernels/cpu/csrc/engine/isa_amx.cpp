// Compiled with -mamx-tile, -mamx-int8 and what AVX-512 these machines have where the target is
// x86-64 and the compiler knows them, empty elsewhere; machine.cpp probes the machine, and asks the
// operating system for its tiles, before it reads the table.
#include "host/int8.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AVX512VBMI__)
#include "simd/bytes_avx512.h"

#include "engine/int8_amx.h"
#include "engine/int8_consumers.h"

namespace kgfast {

constexpr Int8Tier table = {
    "int8",
    [](int64_t features) {  // cycles: measured on a Xeon with AMX (2.1 GHz)
      return static_cast<double>(features) / 30.0 -
             static_cast<double>(int8_padded(features)) / 400.0 - 0.26;
    },
    60.0,
    begin_tiles,
    end_tiles,
    {pack_amx_queries, pack_int8_panel<false>, count_int8_panel<AmxEngine>,
     record_int8_panel<AmxEngine>},
    nullptr,
    pack_int8_panel<false>,
    check_int8_panel,
    keep_int8_panel<AmxEngine>};
constexpr const Int8Tier* amx_tier = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Int8Tier* amx_tier = nullptr;
}  // namespace kgfast
#endif
