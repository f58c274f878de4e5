// The int8 tier of NEON; empty elsewhere.
#include "host/int8.h"

#if defined(__aarch64__)
#include "simd/words_neon.h"

#include "engine/int8_words.h"

namespace kgfast {

const Int8Tier* neon_int8_tier() {
  return word_tier([](int64_t features) { return static_cast<double>(features) / 64.0 - 0.4; });
}

}  // namespace kgfast
#else
namespace kgfast {
const Int8Tier* neon_int8_tier() { return nullptr; }
}  // namespace kgfast
#endif
