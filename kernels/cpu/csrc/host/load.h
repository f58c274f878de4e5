// Reading runs of features from a row of any dtype and stride, as float or double. Conversions are
// exact except float64 to float, whose rounding the bound carries.
//
// The switch over dtypes is not inlined, here and in store.h. Inlined loops of each dtype took a
// quarter of the compile time and gained nothing.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "host/view.h"

namespace kgfast {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float to_float(float x) { return x; }
inline float to_float(double x) { return static_cast<float>(x); }
inline float to_float(BFloat x) { return bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float to_float(Half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = x.bits & 0x7FFF;
  if (magnitude >= 0x7C00) return bit_cast<float>(sign | 0x7F800000u | magnitude << 13);
  if (magnitude < 0x0400) {  // zero or denormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
#endif
}
inline double to_double(double x) { return x; }
template <class T>
inline double to_double(T x) {
  return static_cast<double>(to_float(x));
}

inline bool is_nonfinite(float x) {
  return (bit_cast<uint32_t>(x) & 0x7F800000u) == 0x7F800000u;
}
inline bool is_nonfinite(double x) {
  return (bit_cast<uint64_t>(x) & 0x7FF0000000000000u) == 0x7FF0000000000000u;
}
inline bool is_nonfinite(Half x) { return (x.bits & 0x7C00) == 0x7C00; }
inline bool is_nonfinite(BFloat x) { return (x.bits & 0x7F80) == 0x7F80; }

template <class T>
inline const T* run_at(const View& view, int64_t row, int plane, int64_t feature) {
  return reinterpret_cast<const T*>(view.data) + row * view.row_stride + view.start[plane] +
         feature * view.step;
}

// Calls call(T{}) with the type of a dtype's numbers.
template <class F>
__attribute__((always_inline)) inline auto with_dtype(DType dtype, F&& call) {
  switch (dtype) {
    case DType::f16: return call(Half{});
    case DType::bf16: return call(BFloat{});
    case DType::f64: return call(double{});
    default: return call(float{});
  }
}

// Both read `count` features of one plane of a row; load_floats says whether one is not finite.
[[maybe_unused]] __attribute__((noinline)) bool load_floats(const View& view, int64_t row,
                                                            int plane, int64_t feature,
                                                            int64_t count, float* out) {
  return with_dtype(view.dtype, [&](auto zero) {
    const auto* from = run_at<decltype(zero)>(view, row, plane, feature);
    int bad = 0;
    if (view.step == 1) {
      for (int64_t i = 0; i < count; ++i) out[i] = to_float(from[i]);
      for (int64_t i = 0; i < count; ++i) bad |= is_nonfinite(from[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = to_float(from[i * view.step]);
      for (int64_t i = 0; i < count; ++i) bad |= is_nonfinite(from[i * view.step]);
    }
    return bad != 0;
  });
}

__attribute__((noinline)) void load_doubles(const View& view, int64_t row, int plane,
                                            int64_t feature, int64_t count, double* out) {
  with_dtype(view.dtype, [&](auto zero) {
    const auto* from = run_at<decltype(zero)>(view, row, plane, feature);
    if (view.step == 1)
      for (int64_t i = 0; i < count; ++i) out[i] = to_double(from[i]);
    else
      for (int64_t i = 0; i < count; ++i) out[i] = to_double(from[i * view.step]);
  });
}

}  // namespace
}  // namespace kgfast
