// Words of AVX-512 (BW): 32 signed 16-bit numbers in what simd/bytes_avx512.h calls a vector of
// bytes. With AVX512-VNNI two products and a sum are one instruction, vpdpwssd.
#pragma once
#include "simd/bytes_avx512.h"

namespace kgfast {
namespace {

struct Words : Bytes {
  static constexpr int columns = 2, queries = 8;  // a tile of sums: 16 of 32 registers

  // Adds products of two words to each integer.
  static I add_word_products(I sum, B a, B b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
  }
  // Loads half a vector of signed bytes as words.
  static B load_widened(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // Joins signed bytes to words 256 * high + low: the first two of each four, and the last two.
  static void join(B high, B low, B* first, B* last) {
    high = _mm512_add_epi8(high, _mm512_movm_epi8(_mm512_movepi8_mask(low)));  // -1 where low < 0
    const __m512 a = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high));
    const __m512 b = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high));
    *first = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
    *last = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD));
  }
  static void store(void* p, B x) { _mm512_storeu_si512(p, x); }
  // Stores integers between -2^15 and 2^15 as words.
  static void store_words(int16_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
  }
};

}  // namespace
}  // namespace kgfast
