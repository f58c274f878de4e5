// AVX512-FP16, beside simd/avx512.h: 32 lanes of float16. Denormals are not flushed, and take no
// longer, whatever the flush bits of the thread's mode say (Intel AVX512-FP16 Architecture
// Specification).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace kgfast {
namespace {

using H = __m512h;

struct Half16 {
  static constexpr int W = 32;

  static H load(const uint16_t* p) { return _mm512_loadu_ph(p); }
  static void store(uint16_t* p, H x) { _mm512_storeu_ph(p, x); }
  // Broadcasts a pair of equal halves: 32 bits take a load port alone, 16 bits port 5 too.
  static H set_pair(uint32_t pair) {
    return _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int>(pair)));
  }
  static H smallest() { return _mm512_castsi512_ph(_mm512_set1_epi16(1)); }  // 2^-24
  static H add(H a, H b) { return _mm512_add_ph(a, b); }
  static H sub(H a, H b) { return _mm512_sub_ph(a, b); }
  static H mul(H a, H b) { return _mm512_mul_ph(a, b); }
  static H fma(H a, H b, H c) { return _mm512_fmadd_ph(a, b, c); }
  static H abs(H a) { return _mm512_abs_ph(a); }
  static H rsqrt(H a) { return _mm512_rsqrt_ph(a); }
  // Converts 16 halves in memory to float32.
  static __m512 widen(const uint16_t* p) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_cvtxph_ps(_mm256_castsi256_ph(halves));
  }
  static void narrow(__m512 x, uint16_t* p) {  // rounds to nearest
    const __m256i halves = _mm256_castph_si256(_mm512_cvtxps_ph(x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves);
  }
};

}  // namespace
}  // namespace kgfast
