// Writing runs of features to a row of any dtype and stride, rounded to nearest, ties to even. Then
// runs of one plane of rows with a factor.
#pragma once
#include <cstdint>

#include "host/load.h"
#include "host/view.h"

namespace kgfast {
namespace {

inline void from_float(float x, float& to) { to = x; }
inline void from_float(float x, double& to) { to = x; }
inline void from_float(float x, BFloat& to) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const bool nan = x != x;
  to.bits = static_cast<uint16_t>(nan ? 0x7FC0u : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
inline void from_float(float x, Half& to) {
#if defined(__F16C__)
  to.bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  const uint32_t bits = bit_cast<uint32_t>(x), sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u;
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // a multiple of 2^-24: let the addition round
    half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  to.bits = static_cast<uint16_t>(sign | half);
#endif
}

__attribute__((noinline)) void store_floats(const View& view, int64_t row, int plane,
                                            int64_t feature, int64_t count, const float* from) {
  with_dtype(view.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* to = const_cast<T*>(run_at<T>(view, row, plane, feature));
    if (view.step == 1)
      for (int64_t i = 0; i < count; ++i) from_float(from[i], to[i]);
    else
      for (int64_t i = 0; i < count; ++i) from_float(from[i], to[i * view.step]);
  });
}

inline void load_plane(const Rows& rows, int64_t row, int plane, int64_t feature, int64_t count,
                       float* out) {
  const bool in_view = plane < rows.planes;
  const View& view = in_view ? rows.view : rows.factor;
  if (view.data) load_floats(view, row, in_view ? plane : 0, feature, count, out);
}

inline void store_plane(const Rows& rows, int64_t row, int plane, int64_t feature, int64_t count,
                        const float* from) {
  const bool in_view = plane < rows.planes;
  const View& view = in_view ? rows.view : rows.factor;
  if (view.data) store_floats(view, row, in_view ? plane : 0, feature, count, from);
}

inline const float* floats_at(const Rows& rows, int64_t row, int plane, int64_t feature) {
  return plane < rows.planes ? run_at<float>(rows.view, row, plane, feature)
                             : run_at<float>(rows.factor, row, 0, feature);
}

// True if rows are plain float32, which kernels read in place.
inline bool is_direct(const Rows& rows) {
  return rows.view.is_plain() && (!rows.factor.data || rows.factor.is_plain());
}

}  // namespace
}  // namespace kgfast
