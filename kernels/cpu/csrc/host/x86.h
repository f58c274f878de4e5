// What an x86 machine and its operating system have, asked of the machine itself: the compiler's
// own way, __builtin_cpu_supports, needs a library that Windows' linker does not know.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>

namespace kgfast {
namespace {

struct X86 {
  // With what their kernels are compiled for.
  bool avx2, avx512, avx512fp16, avx512vnni, amx, amx_bf16;
};

// Intel SDM, volume 1, 14.3 and 15.2 to 15.4: the operating system keeps the wide registers (XCR0),
// and the machine has the instructions.
inline X86 probe_x86() {
  unsigned a, b, c, d;
  const auto has = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr unsigned avx2 = 1u << 5;
  constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr unsigned avx512fp16 = 1u << 23, avx512vnni = 1u << 11;
  constexpr unsigned tile = 1u << 24, int8 = 1u << 25, bf16 = 1u << 22, vbmi = 1u << 1;
  constexpr unsigned avx512bf16 = 1u << 5;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, osxsave | avx)) return {};
  const bool fuses = has(c, fma | f16c);
  uint32_t kept, high;
  asm volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if (!has(kept, 0x06) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  const bool is_wide = fuses && has(b, avx512) && has(kept, 0xE6);
  const bool has_tiles = is_wide && has(d, tile) && has(kept, 0x60000);
  X86 found = {fuses && has(b, avx2),
               is_wide,
               is_wide && has(d, avx512fp16),
               is_wide && has(c, avx512vnni),
               has_tiles && has(d, int8) && has(c, vbmi),
               has_tiles && has(d, bf16)};
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has(a, avx512bf16)) found.amx_bf16 = false;
  return found;
}

}  // namespace
}  // namespace kgfast
#endif
