// The instruction set that every machine of this architecture has.
#include "simd_baseline.h"

#include "isa_table.h"

namespace kgfast {

const Isa* baseline_isa() {
  static const Isa isa = make_isa("baseline");
  return &isa;
}

}  // namespace kgfast
