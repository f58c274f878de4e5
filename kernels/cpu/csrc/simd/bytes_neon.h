// Bytes and words of NEON, beside simd/neon.h: 16 bytes, or 8 signed 16-bit numbers. Products of
// eight words and their sums are four instructions, where float32 takes two.
#pragma once
#include "simd/neon.h"

namespace kgfast {
namespace {

struct Bytes {
  using B = uint8x16_t;  // bytes
  using I = int32x4_t;   // int32, as many as floats in a vector
  static constexpr int W = 16;
  static constexpr int columns = 1, queries = 4;  // a tile of sums of words: 16 of 32 registers

  static B load(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
  static B set_run(const void* p) {  // 8 bytes, again and again
    const uint8x8_t run = vld1_u8(static_cast<const uint8_t*>(p));
    return vcombine_u8(run, run);
  }
  static B set_word(const void* p) {  // 4 bytes, again and again
    uint32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return vreinterpretq_u8_u32(vdupq_n_u32(word));
  }
  // Unsigned bytes.
  static B max(B a, B b) { return vmaxq_u8(a, b); }
  static B min(B a, B b) { return vminq_u8(a, b); }
  static B distance(B a, B b) { return vabdq_u8(a, b); }

  static I zero() { return vdupq_n_s32(0); }
  static I load_ints(const int32_t* p) { return vld1q_s32(p); }
  static void store_ints(int32_t* p, I x) { vst1q_s32(p, x); }
  static I add(I a, I b) { return vaddq_s32(a, b); }
  static I round(float32x4_t x) { return vcvtnq_s32_f32(x); }  // to nearest
  static float32x4_t to_floats(I x) { return vcvtq_f32_s32(x); }
  // Adds squares of four unsigned bytes to each integer.
  static I add_squares(I sum, B a) {
    const uint16x8_t low = vmull_u8(vget_low_u8(a), vget_low_u8(a));
    const uint16x8_t high = vmull_u8(vget_high_u8(a), vget_high_u8(a));
    const uint32x4_t squares = vpaddq_u32(vpaddlq_u16(low), vpaddlq_u16(high));
    return vaddq_s32(sum, vreinterpretq_s32_u32(squares));
  }
  // Adds |a - b| of eight unsigned bytes to two integers, split in any way.
  static I add_distances(I sum, B a, B b) {
    const uint16x8_t pairs = vpaddlq_u8(vabdq_u8(a, b));
    return vreinterpretq_s32_u32(vpadalq_u16(vreinterpretq_u32_s32(sum), pairs));
  }
  // Adds max(a x + b y, c x + d y) of unsigned bytes, which is below 2^15: terms of the first eight
  // bytes to `low`, and terms of the second eight to `high`.
  template <int a, int b, int c, int d>
  static void add_larger(I& low, I& high, B x, B y) {
    const auto larger = [](uint8x8_t u, uint8x8_t v) {
      const uint16x8_t first = vmlal_u8(vmull_u8(u, vdup_n_u8(a)), v, vdup_n_u8(b));
      return vmaxq_u16(first, vmlal_u8(vmull_u8(u, vdup_n_u8(c)), v, vdup_n_u8(d)));
    };
    low = add_words(low, larger(vget_low_u8(x), vget_low_u8(y)));
    high = add_words(high, larger(vget_high_u8(x), vget_high_u8(y)));
  }
  // Folds sums of add_larger to two integers for each eight bytes, as add_distances has them.
  static I fold(I low, I high) { return vpaddq_s32(low, high); }
  // Stores the sums of integers 2 i and 2 i + 1.
  static void store_pairs(int32_t* p, I x) { vst1_s32(p, vget_low_s32(vpaddq_s32(x, x))); }
  // Stores each integer + 128, which lies in -128 .. 127, as a byte.
  static void store_bytes(uint8_t* p, I x) {
    const int16x4_t words = vmovn_s32(x);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    const uint8x8_t shifted = veor_u8(vreinterpret_u8_s8(bytes), vdup_n_u8(128));
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(shifted), 0);
    __builtin_memcpy(p, &four, sizeof four);
  }

  // Adds products of two words to each integer.
  static I add_word_products(I sum, B a, B b) {
    const int16x8_t x = vreinterpretq_s16_u8(a), y = vreinterpretq_s16_u8(b);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(x, y)));
  }
  // Loads half a vector of signed bytes as words.
  static B load_widened(const int8_t* p) { return vreinterpretq_u8_s16(vmovl_s8(vld1_s8(p))); }
  // Joins signed bytes to words 256 * high + low: the first two of each four, and the last two.
  static void join(B high, B low, B* first, B* last) {
    const int8x16_t carried = vshrq_n_s8(vreinterpretq_s8_u8(low), 7);  // -1 where low < 0
    high = vaddq_u8(high, vreinterpretq_u8_s8(carried));
    const uint32x4_t a = vreinterpretq_u32_u8(vzip1q_u8(low, high));
    const uint32x4_t b = vreinterpretq_u32_u8(vzip2q_u8(low, high));
    *first = vreinterpretq_u8_u32(vuzp1q_u32(a, b));
    *last = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
  }
  static void store(void* p, B x) { vst1q_u8(static_cast<uint8_t*>(p), x); }
  // Stores integers between -2^15 and 2^15 as words.
  static void store_words(int16_t* p, I x) { vst1_s16(p, vqmovn_s32(x)); }

 private:
  static I add_words(I sum, uint16x8_t words) {
    return vreinterpretq_s32_u32(vpadalq_u16(vreinterpretq_u32_s32(sum), words));
  }
};

}  // namespace
}  // namespace kgfast
