// Compiled with -mavx512fp16 where the target is x86-64 and the compiler knows it, empty elsewhere;
// machine.cpp probes the machine before it calls in here.
#include "host/tiers.h"

namespace kgfast {

struct HalfTier {};

#if defined(__AVX512FP16__)
const HalfTier* avx512fp16_tier() {
  static const HalfTier tier{};
  return &tier;
}
#else
const HalfTier* avx512fp16_tier() { return nullptr; }
#endif

}  // namespace kgfast
