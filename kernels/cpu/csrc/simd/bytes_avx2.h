// Bytes and words of AVX2, beside simd/avx2.h: 32 bytes, or 16 signed 16-bit numbers. Two products
// of words and a sum are two instructions, vpmaddwd and vpaddd.
#pragma once
#include "simd/avx2.h"

namespace kgfast {
namespace {

struct Bytes {
  using B = __m256i;  // bytes
  using I = __m256i;  // int32, as many as floats in a vector
  static constexpr int W = 32;
  static constexpr int columns = 1, queries = 4;  // a tile of sums of words: 8 of 16 registers

  static B load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static B set_run(const void* p) {  // 8 bytes, again and again
    int64_t run;
    __builtin_memcpy(&run, p, sizeof run);
    return _mm256_set1_epi64x(run);
  }
  static B set_word(const void* p) {  // 4 bytes, again and again
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
  }
  // Unsigned bytes.
  static B max(B a, B b) { return _mm256_max_epu8(a, b); }
  static B min(B a, B b) { return _mm256_min_epu8(a, b); }
  static B distance(B a, B b) {
    return _mm256_or_si256(_mm256_subs_epu8(a, b), _mm256_subs_epu8(b, a));
  }

  static I zero() { return _mm256_setzero_si256(); }
  static I load_ints(const int32_t* p) { return load(p); }
  static void store_ints(int32_t* p, I x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I round(__m256 x) { return _mm256_cvtps_epi32(x); }  // to nearest
  static __m256 to_floats(I x) { return _mm256_cvtepi32_ps(x); }
  // Adds squares of four unsigned bytes to each integer.
  static I add_squares(I sum, B a) {
    const I even = _mm256_and_si256(a, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(a, 8);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, odd));
  }
  // Adds |a - b| of eight unsigned bytes to two integers, split in any way.
  static I add_distances(I sum, B a, B b) {
    return _mm256_add_epi32(sum, _mm256_sad_epu8(a, b));
  }
  // Adds max(a x + b y, c x + d y) of unsigned bytes, which is below 2^15: terms of each first
  // eight of sixteen bytes to `low`, and terms of the second eight to `high`.
  template <int a, int b, int c, int d>
  static void add_larger(I& low, I& high, B x, B y) {
    const I first = _mm256_set1_epi16(a | b << 8), second = _mm256_set1_epi16(c | d << 8);
    const auto larger = [&](B pairs) {
      return _mm256_max_epi16(_mm256_maddubs_epi16(pairs, first),
                           _mm256_maddubs_epi16(pairs, second));
    };
    low = add_words(low, larger(_mm256_unpacklo_epi8(x, y)));
    high = add_words(high, larger(_mm256_unpackhi_epi8(x, y)));
  }
  // Folds sums of add_larger to two integers for each eight bytes, as add_distances has them.
  static I fold(I low, I high) {
    return _mm256_hadd_epi32(low, high);
  }
  // Stores the sums of integers 2 i and 2 i + 1.
  static void store_pairs(int32_t* p, I x) {
    const I sums = _mm256_add_epi32(x, _mm256_srli_epi64(x, 32));
    const I places = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const I first = _mm256_permutevar8x32_epi32(sums, places);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(first));
  }
  // Stores each integer + 128, which lies in -128 .. 127, as a byte.
  static void store_bytes(uint8_t* p, I x) {
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i bytes = _mm_xor_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(-128));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes);
  }

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

 private:
  static I add_words(I sum, I words) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
};

}  // namespace
}  // namespace kgfast
