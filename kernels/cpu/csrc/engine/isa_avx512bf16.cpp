// Compiled with -mavx512bf16 and what isa_avx512.cpp has where the target is x86-64 and the
// compiler knows it, empty elsewhere; machine.cpp probes the machine before it reads the table.
#include "host/bf16_loss.h"

#if defined(__AVX512BF16__)
#include "simd/avx512.h"

#include "engine/bf16_vector.h"
#include "engine/bf16_loss.h"

namespace kgfast {

constexpr Bf16Kernels table = {bf16_scratch, pack_bf16_queries, bf16_stripe,
                               finish_bf16_queries};
constexpr const Bf16Kernels* avx512bf16_kernels = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Bf16Kernels* avx512bf16_kernels = nullptr;
}  // namespace kgfast
#endif
