// Compiled with -mamx-tile, -mamx-bf16, -mavx512bf16 and what isa_avx512.cpp has where the target
// is x86-64 and the compiler knows them, empty elsewhere; machine.cpp probes the machine, and asks
// the operating system for its tiles, before it calls in here.
#include "host/bf16_loss.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "simd/avx512.h"

#include "engine/bf16_amx.h"
#include "engine/bf16_loss.h"

namespace kgfast {

const Bf16Kernels* amx_bf16_kernels() {
  static const Bf16Kernels kernels = {bf16_scratch, pack_bf16_queries, bf16_stripe,
                                      finish_bf16_queries};
  return &kernels;
}

}  // namespace kgfast
#else
namespace kgfast {
const Bf16Kernels* amx_bf16_kernels() { return nullptr; }
}  // namespace kgfast
#endif
