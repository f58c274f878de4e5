// Scores of float32 rows and counts of those above a threshold: the plain loop that an expert would
// write for the machine it is compiled on (-O3 -march=native), without bounds, filters and proofs.
//
// Rows lie in panels [rows / L][dim][planes][L] that were packed before; a tile of queries meets a
// panel while it is in the cache. Compiled and called by lib/peers/bare.py.
#include <cmath>
#include <cstdint>

#if defined(__AVX512F__) || defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kVectors = 4;
#elif defined(__AVX__)
constexpr int kBytes = 32, kVectors = 2;
#else
constexpr int kBytes = 16, kVectors = 2;
#endif
constexpr int kWidth = kBytes / 4, kLanes = kWidth * kVectors, kTile = 4;
typedef float V __attribute__((vector_size(kBytes)));
typedef int32_t I __attribute__((vector_size(kBytes)));

// Returns the fastest estimate: wrong by 2^-14 of a root (AVX: 2^-12), so that ranks are off.
V root(V x) {
#if defined(__AVX512F__)
  return x * (V)_mm512_rsqrt14_ps(x);
#elif defined(__AVX__)
  return x * (V)_mm256_rsqrt_ps(x);
#else
  for (int i = 0; i < kWidth; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

struct Dot {
  static constexpr int planes = 1;
  static V add(V sum, const V* q, const V* c) { return sum + q[0] * c[0]; }
};
struct L1 {
  static constexpr int planes = 1;
  static V add(V sum, const V* q, const V* c) {
    const V d = q[0] - c[0];
    return sum - (V)((I)d & 0x7fffffff);
  }
};
struct L2 {
  static constexpr int planes = 1;
  static V add(V sum, const V* q, const V* c) {
    const V d = q[0] - c[0];
    return sum - d * d;
  }
};
struct Rotate {
  static constexpr int planes = 2;
  static V add(V sum, const V* q, const V* c) {
    const V re = q[0] - c[0], im = q[1] - c[1];
    return sum - root(re * re + (im * im + 1e-30f));
  }
};

template <class Score, int Q>
void tile(const float* queries, const float* panel, int64_t dim, const float* own, int64_t* greater,
          int64_t* equal) {
  constexpr int P = Score::planes;
  V sums[Q][kVectors] = {};
  for (int64_t k = 0; k < dim; ++k) {
    V c[kVectors][P], q[P];
    for (int b = 0; b < kVectors; ++b)
      for (int p = 0; p < P; ++p)
        c[b][p] = *reinterpret_cast<const V*>(panel + (k * P + p) * kLanes + b * kWidth);
    for (int a = 0; a < Q; ++a) {
      for (int p = 0; p < P; ++p) q[p] = queries[(a * P + p) * dim + k] - V{};
      for (int b = 0; b < kVectors; ++b) sums[a][b] = Score::add(sums[a][b], q, c[b]);
    }
  }
  for (int a = 0; a < Q; ++a) {
    I above = {}, same = {};
    for (const V& sum : sums[a]) above -= sum > own[a], same -= sum == own[a];
    for (int i = 0; i < kWidth; ++i) greater[a] += above[i], equal[a] += same[i];
  }
}

template <class Score>
void count(const float* queries, int64_t batch, const float* panels, int64_t many, int64_t dim,
           const float* own, int64_t* greater, int64_t* equal) {
  const int64_t row = dim * Score::planes;
  for (int64_t n = 0; n < many; ++n, panels += row * kLanes) {
    int64_t b = 0;
    for (; b + kTile <= batch; b += kTile)
      tile<Score, kTile>(queries + b * row, panels, dim, own + b, greater + b, equal + b);
    for (; b < batch; ++b)
      tile<Score, 1>(queries + b * row, panels, dim, own + b, greater + b, equal + b);
  }
}

}  // namespace

extern "C" int lanes() { return kLanes; }

#define LOOP(name, Score)                                                                       \
  extern "C" void name(const float* q, int64_t batch, const float* panels, int64_t many,        \
                       int64_t dim, const float* own, int64_t* greater, int64_t* equal) {       \
    count<Score>(q, batch, panels, many, dim, own, greater, equal);                             \
  }
LOOP(dot, Dot)
LOOP(l1, L1)
LOOP(l2, L2)
LOOP(rotate, Rotate)
