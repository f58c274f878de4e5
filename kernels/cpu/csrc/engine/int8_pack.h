// Rows as pairs of bytes, with what rounding left of them measured.
//
// Cost model: two passes over a row, 14 instructions for 16 numbers on the two vector ports;
// columns of 16 rows are transposed as words of 4 bytes, 2 shuffles for 16 numbers.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/pack.h"
#include "engine/pause.h"
#include "host/int8.h"

namespace kgfast {
namespace {

constexpr float kMostWhole = 32512.0f;  // 127 * 256: the largest |X|, whose bytes do not overflow
constexpr float kLeastSize = 0x1p-100f;  // of a row's largest number, for a scale that is normal
constexpr float kMostNorm = 0x1p62f;     // rows beyond are left open: no product overflows

// Sums over the features of up to 16 rows, a row in a lane.
struct Int8Sums {
  alignas(64) float scale[16], inverse[16];
  alignas(64) float rounding[16], size[16];  // of squares of t - X and of t = x / s
  alignas(64) float low[16];                 // of squares of L
};

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1);
}

// Positions of the low, and of the high, bytes of 64 words that two packs of two vectors of 32-bit
// numbers have left interleaved.
struct BytePlaces {
  alignas(64) uint8_t low[64], high[64];
  constexpr BytePlaces() : low(), high() {
    for (int i = 0; i < 64; ++i) {
      const int vector = i / 16, in = i % 16, lane = in / 4, word = in % 4;
      const int place = vector / 2 * 64 + lane * 16 + vector % 2 * 8 + word * 2;
      low[i] = static_cast<uint8_t>(place);
      high[i] = static_cast<uint8_t>(place + 1);
    }
  }
};

// Packs one row: 64 features of block b at high + b * step and low + b * step.
inline void pack_row(const float* row, int64_t features, int64_t step, int8_t* high, int8_t* low,
                     int lane, Int8Sums* sums) {
  static constexpr BytePlaces places;
  __m512 most = _mm512_set1_ps(kLeastSize);
  for (int64_t k = 0; k < features; k += 16)
    most = _mm512_range_ps(most, _mm512_maskz_loadu_ps(first_lanes(features - k), row + k), 0x0B);
  const float scale = _mm512_reduce_max_ps(most) * (1.0f / kMostWhole), inverse = 1.0f / scale;
  const __m512 factor = _mm512_set1_ps(inverse);
  const __m512i low_places = _mm512_load_si512(places.low);
  const __m512i high_places = _mm512_load_si512(places.high);
  const __m512i half = _mm512_set1_epi16(128);
  __m512 rounding[2] = {}, size[2] = {};
  __m512i lows = _mm512_setzero_si512();
  for (int64_t k = 0; k < features; k += kInt8Block) {
    __m512i whole[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int64_t left = std::max<int64_t>(features - k - 16 * i, 0);
      const __m512 x = _mm512_maskz_loadu_ps(first_lanes(left), row + k + 16 * i);
      const __m512 t = _mm512_mul_ps(x, factor);
      whole[i] = _mm512_cvtps_epi32(t);
      const __m512 rest = _mm512_sub_ps(t, _mm512_cvtepi32_ps(whole[i]));
      rounding[i % 2] = _mm512_fmadd_ps(rest, rest, rounding[i % 2]);
      size[i % 2] = _mm512_fmadd_ps(t, t, size[i % 2]);
    }
    __m512i word[2], carried[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      word[i] = _mm512_packs_epi32(whole[2 * i], whole[2 * i + 1]);
      carried[i] = _mm512_add_epi16(word[i], half);  // its high byte is H
      const __m512i part =  // L, as a word
          _mm512_sub_epi16(word[i], _mm512_and_si512(carried[i], _mm512_set1_epi16(-256)));
      lows = _mm512_add_epi32(lows, _mm512_madd_epi16(part, part));
    }
    const int64_t at = k / kInt8Block * step;
    _mm512_storeu_si512(low + at, _mm512_permutex2var_epi8(word[0], low_places, word[1]));
    _mm512_storeu_si512(high + at, _mm512_permutex2var_epi8(carried[0], high_places, carried[1]));
  }
  sums->scale[lane] = scale;
  sums->inverse[lane] = inverse;
  sums->rounding[lane] = _mm512_reduce_add_ps(_mm512_add_ps(rounding[0], rounding[1]));
  sums->size[lane] = _mm512_reduce_add_ps(_mm512_add_ps(size[0], size[1]));
  sums->low[lane] = static_cast<float>(_mm512_reduce_add_epi32(lows));
}

// Upper bounds, in units of the scale: of |r|, of |X| and |x| / s, and of |L|, where t is x / s but
// for three roundings and numbers that are flushed. Norms that are too large, or not numbers, are
// NaNs.
struct Int8Norms {
  V rounding, size, low;
};

inline Int8Norms norms_of(const Int8Sums& sums, int64_t features) {
  const float count = static_cast<float>(features + 64);
  const V up = Simd::set1(1.0f + (count + 16.0f) * 0x1p-23f);
  const V flushed = Simd::mul(Simd::set1(count * 0x1p-125f), Simd::load(sums.inverse));
  const auto root = [&](const float* squares) {
    return Simd::fma(Simd::sqrt(Simd::load(squares)), up, Simd::set1(count * 0x1p-62f));
  };
  Int8Norms norms;
  const V size = Simd::add(root(sums.size), flushed);
  norms.rounding = Simd::fma(size, Simd::set1(0x1p-22f), Simd::add(root(sums.rounding), flushed));
  norms.size = Simd::add(size, norms.rounding);
  norms.low = root(sums.low);
  const __mmask16 fits = _mm512_cmp_ps_mask(Simd::mul(norms.size, Simd::load(sums.scale)),
                                            Simd::set1(kMostNorm), _CMP_LE_OQ);
  const V nan = Simd::set1(std::numeric_limits<float>::quiet_NaN());
  norms.size = _mm512_mask_blend_ps(fits, nan, norms.size);
  return norms;
}

constexpr int64_t kAhead = 4;  // rows that are fetched before they are read

inline void fetch(const float* row, int64_t features) {
  for (int64_t k = 0; k < features; k += 16) _mm_prefetch(row + k, _MM_HINT_T0);
}

// The row of a view as floats: where it stands, or converted.
inline const float* row_floats(const View& view, int64_t row, int64_t features, float* out) {
  if (view.dtype == DType::f32 && view.step == 1) return run_at<float>(view, row, 0, 0);
  load_floats(view, row, 0, 0, features, out);
  return out;
}

// The norm of a row that is not finite is a NaN, as is that of one that is too large.
void check_int8_panel(const SweepJob& job, int64_t panel, const char* packed, Worker& worker) {
  const auto* sizes =
      reinterpret_cast<const float*>(packed + 2 * kInt8Candidates * int8_padded(job.num_features)) +
      2 * kInt8Candidates;
  uint32_t bad = 0;
  for (int64_t column = 0; column < kInt8Candidates; column += kInt8Column) {
    const V size = Simd::load(sizes + column);
    bad |= _mm512_cmp_ps_mask(size, size, _CMP_UNORD_Q);
  }
  const int64_t first = panel * kInt8Candidates, left = job.num_candidates - first;
  if (bad) find_nonfinite(job, first, static_cast<int>(std::min(kInt8Candidates, left)), worker);
}

__attribute__((noinline)) void pack_int8_panel(const SweepJob& job, int64_t panel, char* scratch,
                                               char* out, Worker& worker) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t features = job.num_features, padded = int8_padded(features);
  const int64_t first = panel * kInt8Candidates;
  const int64_t valid = std::min(kInt8Candidates, job.num_candidates - first);
  auto* rows = reinterpret_cast<int8_t*>(scratch);  // [2][blocks][16][64]
  auto* floats = reinterpret_cast<float*>(rows + 2 * kInt8Column * padded);
  auto* bytes = reinterpret_cast<int8_t*>(out);
  auto* facts = reinterpret_cast<float*>(out + 2 * kInt8Candidates * padded);
  constexpr int64_t tile = kInt8Column * kInt8Block;
  for (int64_t column = 0; column < kInt8Candidates; column += kInt8Column) {
    Int8Sums sums;
    for (int64_t i = 0; i < kInt8Column; ++i) {  // those past the last candidate repeat it
      const int64_t id = candidate_of(job, first + std::min(column + i, valid - 1));
      const int64_t next = candidate_of(job, first + std::min(column + i + kAhead, valid - 1));
      if (is_direct(job.rows)) fetch(run_at<float>(job.rows.view, next, 0, 0), features);
      pack_row(row_floats(job.rows.view, id, features, floats), features, tile,
               rows + i * kInt8Block, rows + kInt8Column * padded + i * kInt8Block,
               static_cast<int>(i), &sums);
    }
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t k = 0; k < padded; k += kInt8Block) {
        const float* from[kInt8Column];
        const int8_t* block = rows + half * kInt8Column * padded + k / kInt8Block * tile;
        for (int64_t i = 0; i < kInt8Column; ++i)
          from[i] = reinterpret_cast<const float*>(block + i * kInt8Block);
        int8_t* to = bytes + half * kInt8Candidates * padded + column * padded + k * kInt8Column;
        Simd::transpose(from, 0, reinterpret_cast<float*>(to), 16);
      }
    const Int8Norms norms = norms_of(sums, features);
    const V scale = Simd::load(sums.scale), up = Simd::set1(1.0f + 0x1p-21f);
    const V size = Simd::mul(Simd::mul(norms.size, scale), up);
    Simd::store(facts + column, Simd::mul(scale, Simd::set1(256.0f)));
    Simd::store(facts + 64 + column, Simd::mul(Simd::mul(norms.rounding, scale), up));
    Simd::store(facts + 128 + column, size);
    Simd::store(facts + 192 + column, Simd::mul(Simd::mul(norms.low, scale), up));
  }
  check_int8_panel(job, panel, out, worker);
}

// The largest error of a sum that was rounded eight times, of numbers up to 8 |X| |X'|.
constexpr float kInt8Arithmetic = 64.0f * 0x1p-24f;

__attribute__((noinline)) void pack_int8_queries(const SweepJob& job, int8_t* tiles,
                                                 float* floats, Int8Query* queries) {
  const FloatMode mode(FloatMode::kFlush);
  const int64_t features = job.num_features, padded = int8_padded(features);
  const bool rounded = job.rows.view.dtype == DType::f64 || job.query.dtype == DType::f64;
  const float canonical = static_cast<float>(features + 8) * 0x1p-50f;
  const float relative = kInt8Arithmetic + canonical + (rounded ? 4.0f * 0x1p-24f : 0.0f);
  constexpr int64_t tile = kInt8Queries * kInt8Block;
  for (int64_t first = 0; first < job.num_queries; first += kInt8Queries) {
    int8_t* high = tiles + first * 2 * padded;
    int8_t* low = high + kInt8Queries * padded;
    std::memset(high, 0, int8_tile_bytes(features));
    Int8Sums sums = {};
    const int64_t count = std::min(kInt8Queries, job.num_queries - first);
    for (int64_t i = 0; i < count; ++i) {
      float* row = floats + (first + i) * padded;
      load_floats(job.query, job.query_ids[first + i], 0, 0, features, row);
      for (int64_t k = 0; k < features; ++k) row[k] *= job.facts.query_sign;
      std::fill(row + features, row + padded, 0.0f);
      pack_row(row, features, tile, high + i * kInt8Block, low + i * kInt8Block,
               static_cast<int>(i), &sums);
    }
    const Int8Norms norms = norms_of(sums, features);
    alignas(64) float size[16], rounding[16], lows[16];
    const V up = Simd::set1(1.0f + 0x1p-20f);
    Simd::store(size, Simd::mul(norms.size, up));
    Simd::store(rounding,
                Simd::mul(Simd::fma(norms.size, Simd::set1(relative), norms.rounding), up));
    Simd::store(lows, Simd::mul(norms.low, up));
    for (int64_t i = 0; i < count; ++i)
      queries[first + i] = {sums.scale[i], sums.inverse[i], size[i], rounding[i], lows[i], 0.0f,
                            0.0f};
  }
}

}  // namespace
}  // namespace kgfast
