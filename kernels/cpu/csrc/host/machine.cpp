// Instruction sets and tiers of this machine.
#include "host/execution.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kgfast {
namespace {

// Features of an x86 machine and its operating system, each with the others that its kernels are
// compiled for. The compiler's own __builtin_cpu_supports needs a library that Windows lacks.
struct X86 {
  bool avx2, avx512, avx512vnni;
};

#if defined(__x86_64__)
// Probes the machine (Intel SDM, volume 1, 14.3 and 15.2 to 15.4): the operating system keeps the
// wide registers (XCR0), and the machine has the instructions.
X86 probe_x86() {
  unsigned a, b, c, d;
  const auto has = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr unsigned avx2 = 1u << 5;
  constexpr unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr unsigned avx512vnni = 1u << 11;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, osxsave | avx)) return {};
  const bool fuses = has(c, fma | f16c);
  uint32_t kept, high;
  asm volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if (!has(kept, 0x06) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  const bool is_wide = fuses && has(b, avx512) && has(kept, 0xE6);
  return {fuses && has(b, avx2), is_wide, is_wide && has(c, avx512vnni)};
}
#else
X86 probe_x86() { return {}; }
#endif

// Asks the processor, and picks the instruction sets of this machine and build, best first. No
// other function reads the tables of instruction sets, so that no kernel runs without its
// instructions.
const std::vector<Isa>& machine() {
  static const std::vector<Isa> picked = [] {
    const X86 has = probe_x86();
    std::vector<Isa> usable;
    if (has.avx512 && avx512_isa) {
      usable.push_back(*avx512_isa);
      if (has.avx512vnni && avx512vnni_int8_tier)
        usable[0].int8 = avx512vnni_int8_tier;
      else if (has.avx2 && avx2_isa)
        usable[0].int8 = avx2_isa->int8;
    }
    if (has.avx2 && avx2_isa) usable.push_back(*avx2_isa);
    if (neon_isa) usable.push_back(*neon_isa);
    usable.push_back(*baseline_isa);
    return usable;
  }();
  return picked;
}

}  // namespace

void throw_unknown_score(ScoreId score) {
  throw std::invalid_argument("no kernels of score " + std::to_string(static_cast<int>(score)));
}

const Isa* find_isa(const char* name) {
  const bool any = name == nullptr || *name == '\0';
  for (const Isa& isa : machine())
    if (any || !std::strcmp(name, isa.name)) return &isa;
  return nullptr;
}

unsigned find_tiers(const Isa& isa) {
  const auto bit = [](Tier tier, const void* kernels) {
    return kernels ? static_cast<unsigned>(tier) : 0u;
  };
  return bit(Tier::int8, isa.int8) | bit(Tier::bytes, isa.bytes);
}

}  // namespace kgfast
