// Kernels in plain C++, for machines without a better instruction set: in every build.
#include "simd/baseline.h"

#include "engine/isa_table.h"
#include "host/job.h"

namespace kgfast {

constexpr Isa table = make_isa("baseline", nullptr, nullptr);
constexpr const Isa* baseline_isa = &table;

}  // namespace kgfast
