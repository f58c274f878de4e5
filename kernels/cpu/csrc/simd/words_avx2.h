// Words of AVX2: 16 signed 16-bit numbers in what simd/bytes_avx2.h calls a vector of bytes. Two
// products and a sum are two instructions, vpmaddwd and vpaddd.
#pragma once
#include "simd/bytes_avx2.h"

namespace kgfast {
namespace {

struct Words : Bytes {
  static constexpr int columns = 1, queries = 4;  // a tile of sums: 8 of 16 registers

  // Adds products of two words to each integer.
  static I add_word_products(I sum, B a, B b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
  // Loads half a vector of signed bytes as words.
  static B load_widened(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Joins signed bytes to words 256 * high + low: the first two of each four, and the last two.
  static void join(B high, B low, B* first, B* last) {
    high = _mm256_add_epi8(high, _mm256_cmpgt_epi8(zero(), low));  // -1 where low < 0
    const __m256 a = _mm256_castsi256_ps(_mm256_unpacklo_epi8(low, high));
    const __m256 b = _mm256_castsi256_ps(_mm256_unpackhi_epi8(low, high));
    *first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
    *last = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
  }
  static void store(void* p, B x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  // Stores integers between -2^15 and 2^15 as words.
  static void store_words(int16_t* p, I x) {
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), words);
  }
};

}  // namespace
}  // namespace kgfast
