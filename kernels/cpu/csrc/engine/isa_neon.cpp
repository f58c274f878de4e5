// NEON, which every 64-bit ARM has, so that it needs neither flags nor a probe; empty elsewhere.
#include "host/job.h"

#if defined(__aarch64__)
#include "simd/bytes_neon.h"

#include "engine/byte_rows.h"
#include "engine/isa_table.h"
#include "engine/linear_tier.h"

namespace kgfast {

const Isa* neon_isa() {
  static const Isa isa = make_isa("neon", byte_tier(), linear_tier());
  return &isa;
}

}  // namespace kgfast
#else
namespace kgfast {
const Isa* neon_isa() { return nullptr; }
}  // namespace kgfast
#endif
