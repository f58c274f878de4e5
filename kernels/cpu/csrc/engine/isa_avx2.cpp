// Compiled with -mavx2 -mfma -mf16c where the target is x86-64, empty elsewhere; machine.cpp probes
// the machine before it calls in here.
#include "host/job.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/bytes_avx2.h"

#include "engine/byte_rows.h"
#include "engine/isa_table.h"
#include "engine/linear_tier.h"

namespace kgfast {

const Isa* avx2_isa() {
  static const Isa isa = make_isa("avx2", byte_tier(), linear_tier());
  return &isa;
}

}  // namespace kgfast
#else
namespace kgfast {
const Isa* avx2_isa() { return nullptr; }
}  // namespace kgfast
#endif
