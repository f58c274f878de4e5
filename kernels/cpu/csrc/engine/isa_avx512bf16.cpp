// Compiled with -mavx512bf16 and what isa_avx512.cpp has where the target is x86-64 and the
// compiler knows it, empty elsewhere; machine.cpp probes the machine before it calls in here.
#include "host/bf16_loss.h"

#if defined(__AVX512BF16__)
#include "simd/avx512.h"

#include "engine/bf16_vector.h"
#include "engine/bf16_loss.h"

namespace kgfast {

const Bf16Kernels* avx512bf16_kernels() {
  static const Bf16Kernels kernels = {bf16_scratch, pack_bf16_queries, bf16_stripe,
                                      finish_bf16_queries};
  return &kernels;
}

}  // namespace kgfast
#else
namespace kgfast {
const Bf16Kernels* avx512bf16_kernels() { return nullptr; }
}  // namespace kgfast
#endif
