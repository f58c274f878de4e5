// The int8 tier of machines with AVX512-VNNI, compiled with -mavx512vnni where the target is
// x86-64, empty elsewhere; machine.cpp probes the machine before it reads the table.
#include "host/int8.h"

#if defined(__AVX512VNNI__)
#include "simd/bytes_avx512.h"

#include "engine/int8_sweep.h"

namespace kgfast {

constexpr Int8Tier table = int8_tier(33.0);
constexpr const Int8Tier* avx512vnni_int8_tier = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Int8Tier* avx512vnni_int8_tier = nullptr;
}  // namespace kgfast
#endif
