// Bare loops over panels of float32 and of float16 that are converted where they are loaded (F16C):
// a tile of four queries and a panel in the cache, as ranks sweep it, and one query and a table in
// memory, as an index is read. Compiled and run by benchmarks/tiers_speed.py; prints a line of JSON
// for each score and work, with the CPU seconds of both in turns.
#include HEADER

#include <time.h>

#include <cstdio>
#include <vector>

#include "scores/scores.h"

namespace kgfast {
[[noreturn]] void throw_unknown_score(ScoreId) { __builtin_trap(); }
namespace {

constexpr int64_t kFeatures = 256, kRounds = 25;
volatile float sink;

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

V load(const float* from) { return Simd::load(from); }
V load(const uint16_t* from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

// Sums Q queries and a panel, as engine/sweep.h does.
template <class Score, int Q, class T>
__attribute__((noinline)) void sweep(const T* panel, const float* tile) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, B = Score::vectors;
  V sums[Q][B];
  for (auto& row : sums)
    for (V& sum : row) sum = Simd::zero();
  for (int64_t k = 0; k < kFeatures; ++k) {
    V c[B][P], q[P];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) c[b][p] = load(panel + (k * P + p) * L + b * Simd::W);
    __builtin_prefetch(panel + k * P * L + 4096, 0, 2);
#pragma GCC unroll 4
    for (int a = 0; a < Q; ++a) {
      for (int p = 0; p < P; ++p) q[p] = Simd::set1(tile[(k * P + p) * Q + a]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Score::add(sums[a][b], q, c[b]);
    }
  }
  float lanes[Simd::W];
  for (auto& row : sums)
    for (V& sum : row) {
      Simd::store(lanes, sum);
      sink = lanes[0];
    }
}

template <class Score, int Q, class T>
double seconds_of(const std::vector<T>& table, int64_t turns) {
  static const std::vector<float> tile(kFeatures * Score::planes * Q, 0.5f);
  constexpr int64_t panel = kFeatures * Score::planes * lanes_of<Score>();
  const double start = cpu_seconds();
  for (int64_t turn = 0; turn < turns; ++turn)
    for (size_t at = 0; at < table.size(); at += panel)
      sweep<Score, Q>(table.data() + at, tile.data());
  return cpu_seconds() - start;
}

template <class Score, int Q>
void compare(const char* score, const char* work, int64_t candidates, int64_t turns) {
  const int64_t numbers = candidates * kFeatures * Score::planes;
  const std::vector<float> wide(numbers, 0.25f);
  const std::vector<uint16_t> half(numbers, 0x3400);  // 0.25
  std::printf("{\"score\": \"%s\", \"work\": \"%s\", \"dim\": %d, \"seconds\": [", score, work,
              static_cast<int>(kFeatures));
  for (int64_t round = 0; round < kRounds; ++round)
    std::printf("%s[%.9f, %.9f]", round ? ", " : "", seconds_of<Score, Q>(wide, turns),
                seconds_of<Score, Q>(half, turns));
  std::printf("]}\n");
}

template <class Score>
void compare_both(const char* score) {
  compare<Score, 4>(score, "ranks", lanes_of<Score>(), 2000);
  compare<Score, 1>(score, "one query", 65536, 1);
}

}  // namespace
}  // namespace kgfast

int main() {
  kgfast::compare_both<kgfast::L1>("l1");
  kgfast::compare_both<kgfast::Rotate>("rotate");
}
