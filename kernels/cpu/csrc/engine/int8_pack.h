// Packs rows as whole numbers of two bytes, and measures their roundings.
//
// Cost model: two passes over a row, three where its norm is limited, of 14 instructions a vector.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/pack.h"
#include "host/int8.h"

namespace kgfast {
namespace {

using B = Bytes::B;
using I = Bytes::I;

constexpr float kMostWhole = 32512.0f;  // 127 * 256: the largest |X|, whose bytes do not overflow
constexpr float kLeastSize = 0x1p-100f;  // a row's largest number, at least, for a normal scale
constexpr float kMostNorm = 0x1p62f;     // rows beyond are left open: no product overflows

constexpr float kMostLength = 46290.0f;  // sums of products of two rows stay below 2^31
constexpr int kBlockVectors = kInt8Block / Simd::W;

// Sums over the features of up to 16 rows.
struct Int8Sums {
  alignas(64) float scale[16], inverse[16];
  alignas(64) float rounding[16], size[16];  // sums of squares of t - X and of t = x / s
  alignas(64) float low[16];                 // sum of squares of L
};

// Stores blocks of whole numbers as bytes H and L, of X = 256 H + L: block b at high + b * step and
// low + b * step.
class BytesOut {
 public:
  BytesOut(int8_t* high, int8_t* low, int64_t step) : high_(high), low_(low), step_(step) {}
  void store(int64_t block, const I* whole) {
    alignas(64) int32_t x[kInt8Block];
    for (int i = 0; i < kBlockVectors; ++i) Bytes::store_ints(x + i * Simd::W, whole[i]);
    int8_t* high = high_ + block * step_;
    int8_t* low = low_ + block * step_;
    for (int i = 0; i < kInt8Block; ++i) {
      const int32_t h = (x[i] + 128) >> 8, l = x[i] - 256 * h;
      high[i] = static_cast<int8_t>(h);
      low[i] = static_cast<int8_t>(l);
      lows_ += l * l;
    }
  }
  float low_squares() const { return static_cast<float>(lows_); }

 private:
  int8_t *high_, *low_;
  const int64_t step_;
  int32_t lows_ = 0;
};

// Stores whole numbers of a row as words: each 32 words `step` words after the last.
struct WordsOut {
  int16_t* out;
  int64_t step;
  void store(int64_t block, const I* whole) {
    for (int i = 0; i < kBlockVectors; ++i) {
      const int64_t at = block * kInt8Block + i * Simd::W;
      Bytes::store_words(out + at / 32 * step + at % 32, whole[i]);
    }
  }
  float low_squares() const { return 0.0f; }
};

// Calls take(block, 64 numbers) for the blocks of a row, which end with zeros.
template <class Take>
inline void for_each_block(const float* row, int64_t features, Take take) {
  int64_t k = 0;
  for (; k + kInt8Block <= features; k += kInt8Block) take(k / kInt8Block, row + k);
  if (k == features) return;
  alignas(64) float last[kInt8Block] = {};
  std::memcpy(last, row + k, (features - k) * sizeof(float));
  take(k / kInt8Block, last);
}

// Returns a factor that makes a sum of squares, or its root, an upper bound; the root needs half.
inline float sum_inflation(int64_t features) {
  return 1.0f + (static_cast<float>(features + 64) + 16.0f) * 0x1p-23f;
}

// Returns the sum of squares of a row, times the square of a factor.
inline float squares_of(const float* row, int64_t features, float factor) {
  const V times = Simd::set1(factor);
  V squares[2] = {Simd::zero(), Simd::zero()};
  for_each_block(row, features, [&](int64_t, const float* x) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlockVectors; ++i) {
      const V t = Simd::mul(Simd::load(x + i * Simd::W), times);
      squares[i % 2] = Simd::fma(t, t, squares[i % 2]);
    }
  });
  return sum_of(Simd::add(squares[0], squares[1]));
}

// Returns a scale that keeps a row's whole numbers and their length within limits. Squares are of
// the numbers themselves, unless the sum of these says that a number was too large or too small.
inline float scale_of(const float* row, int64_t features) {
  const bool is_limited = std::sqrt(static_cast<float>(features)) * kMostWhole > kMostLength;
  V most = Simd::set1(kLeastSize), squares[2] = {Simd::zero(), Simd::zero()};
  for_each_block(row, features, [&](int64_t, const float* from) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlockVectors; ++i) {
      const V x = Simd::load(from + i * Simd::W);
      most = Simd::max(Simd::abs(x), most);
      if (is_limited) squares[i % 2] = Simd::fma(x, x, squares[i % 2]);
    }
  });
  const float scale = most_of(most) * (1.0f / kMostWhole);
  if (!is_limited) return scale;
  const float sum = sum_of(Simd::add(squares[0], squares[1]));
  const bool fits = sum > 0x1p-60f && sum < 0x1p120f;
  const float size = std::sqrt(fits ? sum : squares_of(row, features, 1.0f / scale));
  const float norm = size * sum_inflation(features) * (fits ? 1.0f : scale);
  return norm > kMostLength * scale ? norm / kMostLength : scale;
}

// Packs one row into `out`, and sums of its roundings into a lane of `sums`.
template <class Out>
inline void pack_row(const float* row, int64_t features, Out out, int lane, Int8Sums* sums) {
  const float scale = scale_of(row, features), inverse = 1.0f / scale;
  const V factor = Simd::set1(inverse);
  V rounding[2] = {Simd::zero(), Simd::zero()}, size[2] = {Simd::zero(), Simd::zero()};
  for_each_block(row, features, [&](int64_t block, const float* x) {
    I whole[kBlockVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kBlockVectors; ++i) {
      const V t = Simd::mul(Simd::load(x + i * Simd::W), factor);
      whole[i] = Bytes::round(t);
      const V rest = Simd::sub(t, Bytes::to_floats(whole[i]));
      rounding[i % 2] = Simd::fma(rest, rest, rounding[i % 2]);
      size[i % 2] = Simd::fma(t, t, size[i % 2]);
    }
    out.store(block, whole);
  });
  sums->scale[lane] = scale;
  sums->inverse[lane] = inverse;
  sums->rounding[lane] = sum_of(Simd::add(rounding[0], rounding[1]));
  sums->size[lane] = sum_of(Simd::add(size[0], size[1]));
  sums->low[lane] = out.low_squares();
}

// Turns sums into upper bounds, in units of the scale: of |r|, of |X| and |x| / s, and of |L|; here
// t is x / s but for three roundings and numbers that are flushed. Norms that are too large, or not
// numbers, are NaNs.
inline void find_norms(int64_t features, Int8Sums* sums) {
  const float count = static_cast<float>(features + 64), up = sum_inflation(features);
  for (int i = 0; i < 16; ++i) {
    const float flushed = count * 0x1p-125f * sums->inverse[i], least = count * 0x1p-62f;
    const float size = std::sqrt(sums->size[i]) * up + least + flushed;
    const float rounding = std::sqrt(sums->rounding[i]) * up + least + flushed + size * 0x1p-22f;
    sums->rounding[i] = rounding;
    sums->low[i] = std::sqrt(sums->low[i]) * up + least;
    const bool fits = (size + rounding) * sums->scale[i] <= kMostNorm;
    sums->size[i] = fits ? size + rounding : std::numeric_limits<float>::quiet_NaN();
  }
}

constexpr int64_t kAhead = 4;  // rows that are fetched before they are read

inline void fetch(const float* row, int64_t features) {
  for (int64_t k = 0; k < features; k += 16) __builtin_prefetch(row + k);
}

// Returns a row of a view as floats: in place, or converted into `out`.
inline const float* row_floats(const View& view, int64_t row, int64_t features, float* out) {
  if (view.is_plain()) return run_at<float>(view, row, 0, 0);
  load_floats(view, row, 0, 0, features, out);
  return out;
}

constexpr int64_t kRunBytes = 64;  // of a row, side by side
constexpr int64_t kTileBytes = kInt8Column * kRunBytes;

// Transposes tiles of 16 rows of 16 words of 4 bytes.
inline void transpose_tiles(const char* rows, int64_t count, char* out) {
  for (int64_t tile = 0; tile < count; ++tile, rows += kTileBytes, out += kTileBytes) {
    const float* from[kInt8Column];
    for (int64_t i = 0; i < kInt8Column; ++i)
      from[i] = reinterpret_cast<const float*>(rows + i * kRunBytes);
    auto* to = reinterpret_cast<float*>(out);
    for (int i = 0; i < 16; i += Simd::W)
      for (int j = 0; j < 16; j += Simd::W) Simd::transpose(from + i, j, to + j * 16 + i, 16);
  }
}

// Stores the facts of a column of a panel.
inline void store_facts(const Int8Sums& norms, float* facts) {
  constexpr float up = 1.0f + 0x1p-21f;
  for (int i = 0; i < kInt8Column; ++i) {
    const float scale = norms.scale[i];
    facts[i] = scale * 256.0f;
    facts[64 + i] = norms.rounding[i] * scale * up;
    facts[128 + i] = norms.size[i] * scale * up;
    facts[192 + i] = norms.low[i] * scale * up;
  }
}

// Packs a panel in the layout of host/int8.h or, for one call, as words, as int8_sweep.h has it.
template <bool are_words>
void pack_int8_panel(const SweepJob& job, int64_t panel, char* scratch, char* out,
                     Worker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t features = job.num_features, padded = int8_padded(features);
  const int64_t first = panel * kInt8Candidates, half = kInt8Column * padded;
  const int64_t valid = std::min(kInt8Candidates, job.num_candidates - first);
  auto* facts = reinterpret_cast<float*>(out + 2 * kInt8Candidates * padded);
  auto* floats = reinterpret_cast<float*>(scratch + 2 * half);
  for (int64_t column = 0; column < kInt8Candidates; column += kInt8Column) {
    Int8Sums sums;
    for (int64_t i = 0; i < kInt8Column; ++i) {  // the last candidate fills up the panel
      const int64_t id = candidate_of(job, first + std::min(column + i, valid - 1));
      const int64_t next = candidate_of(job, first + std::min(column + i + kAhead, valid - 1));
      if (is_direct(job.rows)) fetch(run_at<float>(job.rows.view, next, 0, 0), features);
      const float* row = row_floats(job.rows.view, id, features, floats);
      auto* to = reinterpret_cast<int8_t*>(scratch + i * kRunBytes);
      if constexpr (are_words)
        pack_row(row, features, WordsOut{reinterpret_cast<int16_t*>(to), kTileBytes / 2},
                 static_cast<int>(i), &sums);
      else
        pack_row(row, features, BytesOut(to, to + half, kTileBytes), static_cast<int>(i), &sums);
    }
    const int64_t tiles = half / kTileBytes;  // of high or of low bytes
    if constexpr (are_words) {
      transpose_tiles(scratch, 2 * tiles, out + 2 * column * padded);
    } else {
      transpose_tiles(scratch, tiles, out + column * padded);
      transpose_tiles(scratch + half, tiles, out + (kInt8Candidates + column) * padded);
    }
    find_norms(features, &sums);
    store_facts(sums, facts + column);
  }
  const float* norms = facts + 2 * kInt8Candidates;  // NaNs: not finite, or too large
  if (std::any_of(norms, norms + kInt8Candidates, [](float norm) { return std::isnan(norm); }))
    find_nonfinite(job, first, static_cast<int>(valid), worker);
}

// The largest error of a sum that was rounded eight times, of numbers up to 8 |X| |X'|.
constexpr float kInt8Arithmetic = 64.0f * 0x1p-24f;

// Returns the place of a query's first word in its tile.
inline int64_t word_query(int64_t i, int64_t padded) {
  return i / Bytes::queries * Bytes::queries * padded + i % Bytes::queries * 4;
}

// Packs queries in tiles of 16, with zeros after the last one.
void pack_word_queries(const SweepJob& job, int8_t* tiles, Int8Query* queries) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t features = job.num_features, padded = int8_padded(features);
  const bool rounded = job.is_rounded();
  const float canonical = static_cast<float>(features + 8) * 0x1p-50f;
  const float relative = kInt8Arithmetic + canonical + (rounded ? 4.0f * 0x1p-24f : 0.0f);
  std::vector<int16_t> words(padded);
  std::vector<float> row(features);
  for (int64_t first = 0; first < job.num_queries; first += kInt8Queries) {
    auto* tile = reinterpret_cast<int16_t*>(tiles + first * 2 * padded);
    std::memset(tile, 0, int8_tile_bytes(features));
    Int8Sums sums = {};
    const int64_t count = std::min(kInt8Queries, job.num_queries - first);
    for (int64_t i = 0; i < count; ++i) {
      load_floats(job.query, job.query_ids[first + i], 0, 0, features, row.data());
      for (float& x : row) x *= job.facts.query_sign;
      pack_row(row.data(), features, WordsOut{words.data(), 32}, static_cast<int>(i), &sums);
      int16_t* to = tile + word_query(i, padded);
      for (int64_t k = 0; k < padded; k += 4)
        std::memcpy(to + k * Bytes::queries, words.data() + k, 4 * sizeof(int16_t));
    }
    find_norms(features, &sums);
    constexpr float up = 1.0f + 0x1p-20f;
    for (int64_t i = 0; i < count; ++i) {
      const float rounding = sums.size[i] * relative + sums.rounding[i];
      queries[first + i] = {sums.scale[i], sums.size[i] * up, rounding * up, 0.0f, 0.0f};
    }
  }
}

}  // namespace
}  // namespace kgfast
