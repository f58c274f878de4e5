// The int8 tier of machines with AVX2, compiled with -mavx2 -mfma and -mf16c where the target is
// x86-64, empty elsewhere; machine.cpp probes the machine before it reads the table.
#include "host/int8.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/words_avx2.h"

#include "engine/int8_words.h"

namespace kgfast {

constexpr Int8Tier table =
    word_tier([](int64_t features) { return static_cast<double>(features) / 40.0 - 0.4; });
constexpr const Int8Tier* avx2_int8_tier = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Int8Tier* avx2_int8_tier = nullptr;
}  // namespace kgfast
#endif
