// NEON, which every 64-bit ARM has, so that it needs neither flags nor a probe; empty elsewhere.
#include "host/job.h"

#if defined(__aarch64__)
#include "simd/neon.h"

#include "engine/isa_table.h"

namespace kgfast {

const Isa* neon_isa() {
  static const Isa isa = make_isa("neon");
  return &isa;
}

}  // namespace kgfast
#else
namespace kgfast {
const Isa* neon_isa() { return nullptr; }
}  // namespace kgfast
#endif
