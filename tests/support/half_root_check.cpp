// Holds vrsqrtph against the bound that host/bounds.h takes of it, for every float16 above zero, in
// both modes of flushing. Compiled by tests/kernels/cpu/test_fp16_tier.py; prints how many exceed it.
#include "simd/avx512fp16.h"

#include <cmath>
#include <cstdio>
#include <initializer_list>

int main() {
  int exceed = 0;
  for (const unsigned mode : {0x1F80u, 0x1F80u | 0x8040u}) {
    _mm_setcsr(mode);
    for (unsigned bits = 1; bits < 0x7C00; ++bits) {
      uint16_t root[32];
      kgfast::Half16::store(root, kgfast::Half16::rsqrt(kgfast::Half16::set_pair(bits * 0x10001u)));
      const double x = _cvtsh_ss(static_cast<uint16_t>(bits)), r = _cvtsh_ss(root[0]);
      exceed += !(std::fabs(r * std::sqrt(x) - 1.0) < 0x1p-11 + 0x1p-14);
    }
  }
  std::printf("%d exceed\n", exceed);
}
