// Compiled with -mavx512vnni where the target is x86-64, empty elsewhere; machine.cpp probes the
// machine before it reads the table.
#include "host/linear.h"
#include "host/tiers.h"

#if defined(__AVX512VNNI__)
#include "simd/bytes_avx512.h"

#include "engine/linear_tier.h"

namespace kgfast {

constexpr const LinearTier* avx512vnni_tier = &kLinearTier;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const LinearTier* avx512vnni_tier = nullptr;
}  // namespace kgfast
#endif
