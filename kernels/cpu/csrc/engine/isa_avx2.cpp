// Compiled with -mavx2 -mfma and -mf16c where the target is x86-64, empty elsewhere; machine.cpp
// probes the machine before it reads the table.
#include "host/job.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/bytes_avx2.h"

#include "engine/byte_rows.h"
#include "engine/int8_sweep.h"
#include "engine/isa_table.h"

namespace kgfast {

constexpr Int8Tier tier = int8_tier(40.0);
constexpr Isa table = make_isa("avx2", &kByteTier, &tier);
constexpr const Isa* avx2_isa = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Isa* avx2_isa = nullptr;
}  // namespace kgfast
#endif
