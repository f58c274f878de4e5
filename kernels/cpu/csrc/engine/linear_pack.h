// Packs rows as bytes for the linear tier, and measures their roundings in the score's norm.
//
// Cost model: two passes over a row, 14 instructions for a vector of numbers (rotate: and a root
// for two). Columns of W rows are transposed as words of 4 bytes.
#pragma once
#include <algorithm>
#include <cfloat>
#include <limits>

#include "engine/gather.h"
#include "host/linear.h"

namespace kgfast {
namespace {

constexpr float kLeastLinear = 0x1p-100f;  // a row's largest number, at least, for a normal scale
constexpr float kMostLinear = 0x1p100f;    // rows beyond are left open: no product overflows

// Packs one row, planes `stride` bytes apart; false where the row does not fit or is not finite.
template <class Score>
inline bool pack_linear_row(const float* const* planes, int64_t features, int64_t stride,
                            uint8_t* out, float* scale, float* error) {
  constexpr int P = Score::planes, W = Simd::W;
  const auto load = [&](int plane, int64_t k) {
    const float* from = planes[plane] + k;
    return k + W <= features ? Simd::load(from) : load_first(from, features - k);
  };
  V most = Simd::set1(kLeastLinear);
  for (int64_t k = 0; k < features; k += W)
    for (int p = 0; p < P; ++p) most = Simd::max(Simd::abs(load(p, k)), most);  // no NaN
  alignas(64) float lanes[W];
  Simd::store(lanes, most);
  const float largest = *std::max_element(lanes, lanes + W), unit = largest / kLinearByte;
  const V inverse = Simd::set1(1.0f / unit), zeros[P] = {};
  V sum = Simd::zero();
  for (int64_t k = 0; k < features; k += W) {
    V rest[P];
    for (int p = 0; p < P; ++p) {
      const V scaled = Simd::mul(load(p, k), inverse);
      const Bytes::I whole = Bytes::round(scaled);
      rest[p] = Simd::sub(scaled, Bytes::to_floats(whole));
      Bytes::store_bytes(out + p * stride + k, whole);
    }
    sum = Score::add(sum, rest, zeros);
  }
  constexpr float root = static_cast<float>(4.0 * Simd::sqrt_error);
  const float moved = add_lanes(sum), count = static_cast<float>(features);
  *scale = unit / Bytes::most;
  *error = unit * (moved * (1.0f + root + (count + 16.0f) * 0x1p-22f) + count * 0x1p-12f) *
           (1.0f + 0x1p-20f);
  return largest <= kMostLinear && moved <= FLT_MAX;
}

template <class Score>
void pack_linear_panel(const SweepJob& sweep, int64_t panel, LinearWorker& worker) {
  constexpr int P = Score::planes, W = Simd::W;
  const FloatMode mode(FloatMode::kIeee);
  const GatherPlace place = gather_place(sweep, panel);
  const int64_t features = sweep.num_features, plane = linear_features(features);
  const int64_t numbers = P * plane, row_bytes = linear_row_bytes(numbers);
  bool all_fit = true;
  for (bool* has_row = worker.has_row; has_row < worker.has_row + kLinearLanes; ++has_row)
    *has_row = false;
  for (int lane = 0; lane < kLinearLanes; lane += W) {
    const float* rows[W];
    for (int i = 0; i < W; ++i) {  // the last candidate fills up the panel
      const int64_t last = place.num_valid - 1;
      const int from = lane + i < last ? lane + i : static_cast<int>(last);
      const float* planes[P];
      find_row<Score>(sweep, place, from, worker, planes);
      uint8_t* out = worker.row_bytes + i * row_bytes;
      rows[i] = reinterpret_cast<const float*>(out);
      float *scale = worker.scales + lane + i, *error = worker.errors + lane + i;
      if (pack_linear_row<Score>(planes, features, plane, out, scale, error)) continue;
      *scale = 0.0f;
      *error = std::numeric_limits<float>::infinity();
      all_fit = false;
    }
    auto* to = reinterpret_cast<float*>(worker.bytes) + lane;
    for (int64_t word = 0; word < row_bytes / kLinearGroup; word += W)
      Simd::transpose(rows, word, to + word * kLinearLanes, kLinearLanes);
  }
  if (!all_fit)
    find_nonfinite(sweep, place.first, static_cast<int>(place.num_valid), *worker.wide);
}

}  // namespace
}  // namespace kgfast
