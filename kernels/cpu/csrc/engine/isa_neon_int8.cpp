// The int8 tier of NEON; empty elsewhere. Products of words take twice the instructions of float32
// (simd/words_neon.h): the tier serves queries that wait for the panels of an index.
#include "host/int8.h"

#if defined(__aarch64__)
#include "simd/words_neon.h"

#include "engine/int8_words.h"

namespace kgfast {

constexpr Int8Tier table =
    word_tier([](int64_t features) { return -static_cast<double>(features) / 8.0; });
constexpr const Int8Tier* neon_int8_tier = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Int8Tier* neon_int8_tier = nullptr;
}  // namespace kgfast
#endif
