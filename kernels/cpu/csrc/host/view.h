// A table as the kernels see it: a pointer, sizes and strides. Nothing here knows of torch.
#pragma once
#include <cstdint>

namespace kgfast {

enum class DType : int { f32 = 0, f16 = 1, bf16 = 2, f64 = 3 };

constexpr int64_t size_of(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

// Rows of `planes` planes of features. Feature k of plane p stands `start[p] + k * step` elements
// into its row: `re | im` has start {0, D} and step 1, `re0 im0 re1 ...` start {0, 1} and step 2.
constexpr int kMaxPlanes = 5;

struct View {
  const char* data = nullptr;
  DType dtype = DType::f32;
  int64_t count = 0;               // rows
  int64_t row_stride = 0;          // in elements; may be 0 or negative
  int64_t start[kMaxPlanes] = {};  // in elements, column stride included
  int64_t step = 1;                // in elements, column stride included
  bool is_plain() const { return dtype == DType::f32 && step == 1; }  // floats, read in place
};

// Rows of `planes` planes of `view`, then the plane of `factor`, which has no data where there is
// no factor. A gradient without data is not computed.
struct Rows {
  View view, factor;
  int planes = 0;
};

}  // namespace kgfast
