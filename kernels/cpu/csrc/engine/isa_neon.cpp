// NEON, which every 64-bit ARM has, so that it needs neither flags nor a probe; empty elsewhere.
#include "host/job.h"

#if defined(__aarch64__)
#include "simd/bytes_neon.h"

#include "engine/byte_rows.h"
#include "engine/int8_sweep.h"
#include "engine/isa_table.h"

namespace kgfast {

// A pair costs more than in float32: the tier serves one or two queries that wait for an index.
constexpr Int8Tier tier = int8_tier(-8.0);
constexpr Isa table = make_isa("neon", &kByteTier, &tier);
constexpr const Isa* neon_isa = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Isa* neon_isa = nullptr;
}  // namespace kgfast
#endif
