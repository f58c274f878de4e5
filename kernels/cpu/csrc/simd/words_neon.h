// Words of NEON: 8 signed 16-bit numbers in what simd/bytes_neon.h calls a vector of bytes. Two
// products and a sum are four instructions for eight products, where float32 takes two.
#pragma once
#include "simd/bytes_neon.h"

namespace kgfast {
namespace {

struct Words : Bytes {
  static constexpr int columns = 1, queries = 4;  // a tile of sums: 16 of 32 registers

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
};

}  // namespace
}  // namespace kgfast
