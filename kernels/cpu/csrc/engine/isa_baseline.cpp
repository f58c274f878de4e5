// Kernels in plain C++, for machines without a known instruction set. 64-bit ARM always has a
// better one. x86 machines without AVX2 are rare: builds for x86 compile this file only with
// KGFAST_BUILD_BASELINE.
#include "host/job.h"

#if defined(KGFAST_BUILD_BASELINE) || !(defined(__x86_64__) || defined(__aarch64__))
#include "simd/baseline.h"

#include "engine/isa_table.h"

namespace kgfast {

constexpr Isa table = make_isa("baseline", nullptr, nullptr);
constexpr const Isa* baseline_isa = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Isa* baseline_isa = nullptr;
}  // namespace kgfast
#endif
