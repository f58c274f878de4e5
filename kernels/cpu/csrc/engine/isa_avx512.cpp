// Compiled with -mavx512{f,bw,dq,vl} where the target is x86-64, empty elsewhere; machine.cpp
// probes the machine before it reads the table.
#include "host/job.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd/bytes_avx512.h"

#include "engine/byte_rows.h"
#include "engine/isa_table.h"

namespace kgfast {

constexpr Isa table = make_isa("avx512", &kByteTier, nullptr);
constexpr const Isa* avx512_isa = &table;

}  // namespace kgfast
#else
namespace kgfast {
constexpr const Isa* avx512_isa = nullptr;
}  // namespace kgfast
#endif
