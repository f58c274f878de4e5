// Packs drawn rows as bytes of distances, and sums them with drawn queries: prints a hash of all
// bytes and sums, which are the same on every instruction set. Compiled with
// -DHEADER="simd/bytes_....h" by tests/kernels/cpu/test_simd.py.
#include HEADER

#include <cstdio>
#include <vector>

#include "engine/byte_rows.h"

namespace kgfast {

// Stubs of host functions, which this check never calls.
void throw_unknown_score(ScoreId) { __builtin_trap(); }
void keep_survivors(const TopkJob&, int64_t, int64_t, uint64_t, const float*, double,
                    TopkWorker&) {}
void keep_scored(const TopkJob&, int64_t, int64_t, uint64_t, TopkWorker&) {}

namespace {

uint64_t hash = 14695981039346656037u;
uint32_t state = 1;

uint32_t drawn() { return (state = state * 1664525u + 1013904223u) >> 8; }
float drawn_float(float size) { return static_cast<float>(drawn() % 20001) * size - 10000 * size; }

template <class T>
void add(const T* values, int64_t count) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values);
  for (size_t i = 0; i < count * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
}

template <class Score>
void check_rows(int64_t features) {
  constexpr int P = Score::planes;
  const int64_t padded = byte_padded(features), stride = byte_scratch(features);
  std::vector<char> panel(byte_panel_bytes(features, P));
  for (int64_t i = 0; i < kByteCandidates; ++i) {
    std::vector<float> row(P * stride);
    for (int p = 0; p < P; ++p)
      for (int64_t k = 0; k < features; ++k)
        row[p * stride + k] = drawn_float(i == 3 ? 0.1f : 0.0001f);  // one row is cut
    pack_byte_row<Score>(row.data(), features, 0.0157f,
                         panel.data() + i / kByteColumn * kByteColumn * P * padded +
                             i % kByteColumn * kByteRun);
  }
  std::vector<uint8_t> queries(4 * P * padded);
  for (uint8_t& it : queries) it = static_cast<uint8_t>(1 + drawn() % 255);
  int32_t sums[4][kByteCandidates];
  byte_sums<Score, 4>(panel.data(), queries.data(), padded, sums);
  add(panel.data(), kByteCandidates * P * padded);
  add(sums[0], 4 * kByteCandidates);
}

}  // namespace
}  // namespace kgfast

int main() {
  using namespace kgfast;
  for (const int64_t features : {1, 3, 8, 17, 70, 256}) {
    check_rows<L1>(features);
    check_rows<L2>(features);
    check_rows<Rotate>(features);
  }
  std::printf("%016llx\n", static_cast<unsigned long long>(hash));
}
