// Compiled with -mamx-tile, -mamx-bf16, -mavx512bf16 and what isa_avx512.cpp has where the target
// is x86-64 and the compiler knows them, empty elsewhere; machine.cpp probes the machine, and asks
// the operating system for its tiles, before it reads the table.
#include "host/bf16_loss.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#include "simd/avx512.h"

#include "engine/bf16_amx.h"
#include "engine/bf16_loss.h"

namespace kgfast {

constexpr Bf16Kernels table = {bf16_scratch, pack_bf16_queries, bf16_stripe,
                               finish_bf16_queries};
constexpr const Bf16Kernels* amx_bf16_kernels = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Bf16Kernels* amx_bf16_kernels = nullptr;
}  // namespace kgfast
#endif
