// Bytes and words of AVX-512 (BW), beside simd/avx512.h: 64 bytes, or 32 signed 16-bit numbers. Two
// products of words and a sum are one instruction of AVX512-VNNI, vpdpwssd.
#pragma once
#include "simd/avx512.h"

namespace kgfast {
namespace {

struct Bytes {
  using B = __m512i;  // bytes
  using I = __m512i;  // int32, as many as floats in a vector
  static constexpr int W = 64;
  static constexpr int columns = 2, queries = 8;  // a tile of sums of words: 16 of 32 registers

  static B load(const void* p) { return _mm512_loadu_si512(p); }
  static B set_run(const void* p) {  // 8 bytes, again and again
    int64_t run;
    __builtin_memcpy(&run, p, sizeof run);
    return _mm512_set1_epi64(run);
  }
  static B set_word(const void* p) {  // 4 bytes, again and again
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
  }
  // Unsigned bytes.
  static B max(B a, B b) { return _mm512_max_epu8(a, b); }
  static B min(B a, B b) { return _mm512_min_epu8(a, b); }
  static B distance(B a, B b) {
    return _mm512_or_si512(_mm512_subs_epu8(a, b), _mm512_subs_epu8(b, a));
  }

  static I zero() { return _mm512_setzero_si512(); }
  static I load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
  static void store_ints(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I round(__m512 x) { return _mm512_cvtps_epi32(x); }  // to nearest
  static __m512 to_floats(I x) { return _mm512_cvtepi32_ps(x); }
  // Adds squares of four unsigned bytes to each integer.
  static I add_squares(I sum, B a) {
    const I even = _mm512_and_si512(a, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(a, 8);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(odd, odd));
  }
  // Adds |a - b| of eight unsigned bytes to two integers, split in any way.
  static I add_distances(I sum, B a, B b) {
    return _mm512_add_epi32(sum, _mm512_sad_epu8(a, b));
  }
  // Adds max(a x + b y, c x + d y) of unsigned bytes, which is below 2^15: terms of each first
  // eight of sixteen bytes to `low`, and terms of the second eight to `high`.
  template <int a, int b, int c, int d>
  static void add_larger(I& low, I& high, B x, B y) {
    const I first = _mm512_set1_epi16(a | b << 8), second = _mm512_set1_epi16(c | d << 8);
    const auto larger = [&](B pairs) {
      return _mm512_max_epi16(_mm512_maddubs_epi16(pairs, first),
                           _mm512_maddubs_epi16(pairs, second));
    };
    low = add_words(low, larger(_mm512_unpacklo_epi8(x, y)));
    high = add_words(high, larger(_mm512_unpackhi_epi8(x, y)));
  }
  // Folds sums of add_larger to two integers for each eight bytes, as add_distances has them.
  static I fold(I low, I high) {
    const I first = _mm512_unpacklo_epi32(low, high), last = _mm512_unpackhi_epi32(low, high);
    const I sums = _mm512_add_epi32(first, last);
    return _mm512_shuffle_epi32(sums, _MM_PERM_DBCA);
  }
  // Stores the sums of integers 2 i and 2 i + 1.
  static void store_pairs(int32_t* p, I x) {
    const I sums = _mm512_add_epi32(x, _mm512_srli_epi64(x, 32));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi64_epi32(sums));
  }
  // Stores each integer + 128, which lies in -128 .. 127, as a byte.
  static void store_bytes(uint8_t* p, I x) {
    const __m128i bytes = _mm_xor_si128(_mm512_cvtepi32_epi8(x), _mm_set1_epi8(-128));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }

#if defined(__AVX512VNNI__)
  // Adds products of two words to each integer.
  static I add_word_products(I sum, B a, B b) { return _mm512_dpwssd_epi32(sum, a, b); }
#endif
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

 private:
  static I add_words(I sum, I words) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace kgfast
