// Packs drawn rows as bytes of distances and of the linear tier, and sums them with drawn queries:
// prints a hash of all bytes and sums, which are the same on every instruction set. Compiled with
// -DHEADER="simd/bytes_....h" by tests/kernels/cpu/test_simd.py.
#include HEADER

#include <cstdio>
#include <vector>

#include "engine/byte_rows.h"
#include "engine/linear_sweep.h"

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

template <class Score>
void check_linear(int64_t features) {
  constexpr int P = Score::planes, W = Simd::W;
  const int64_t plane = linear_features(features), numbers = P * plane;
  const int64_t row_bytes = linear_row_bytes(numbers);
  std::vector<uint8_t> bytes(row_bytes * kLinearLanes), packed(row_bytes * W);
  for (int lane = 0; lane < kLinearLanes; lane += W) {
    const float* rows[W];
    for (int i = 0; i < W; ++i) {
      std::vector<float> row(P * features);
      for (float& it : row) it = drawn_float(0.001f);
      const float* planes[] = {row.data(), row.data() + (P - 1) * features};
      uint8_t* out = packed.data() + i * row_bytes;
      float scale, error;
      pack_linear_row<Score>(planes, features, plane, out, &scale, &error);
      rows[i] = reinterpret_cast<const float*>(out);
    }
    for (int64_t word = 0; word < row_bytes / kLinearGroup; word += W)
      Simd::transpose(rows, word,
                      reinterpret_cast<float*>(bytes.data()) + lane + word * kLinearLanes,
                      kLinearLanes);
  }
  std::vector<int8_t> queries(kLinearQueries * numbers);
  for (int64_t n = 0; n < kLinearQueries * numbers; ++n) {
    const int a = static_cast<int>(drawn() % 129) - 64;
    queries[n] = static_cast<int8_t>(n % plane < features ? a : 0);
  }
  LinearJob job{};
  job.queries = queries.data();
  job.numbers = numbers;
  alignas(64) LinearSums sums;
  add_linear(job, 0, bytes.data(), sums);
  add(sums[0], kLinearQueries * kLinearLanes);
}

}  // namespace
}  // namespace kgfast

int main() {
  using namespace kgfast;
  for (const int64_t features : {1, 3, 8, 17, 70, 256}) {
    check_rows<L1>(features);
    check_rows<L2>(features);
    check_rows<Rotate>(features);
    check_linear<L1>(features);
    check_linear<Rotate>(features);
  }
  std::printf("%016llx\n", static_cast<unsigned long long>(hash));
}
