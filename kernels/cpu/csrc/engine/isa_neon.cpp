// NEON, which every 64-bit ARM has, so that it needs neither flags nor a probe; empty elsewhere.
#include "host/job.h"

#if defined(__aarch64__)
#include "simd/bytes_neon.h"

#include "engine/byte_rows.h"
#include "engine/isa_table.h"

namespace kgfast {

constexpr Isa table = make_isa("neon", &kByteTier);
constexpr const Isa* neon_isa = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Isa* neon_isa = nullptr;
}  // namespace kgfast
#endif
