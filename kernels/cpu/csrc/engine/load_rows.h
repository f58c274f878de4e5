// Reading and writing runs of features of one plane of rows with a factor.
#pragma once
#include "host/load.h"
#include "host/store.h"

namespace kgfast {
namespace {

inline void load_plane(const Rows& rows, int64_t row, int plane, int64_t feature, int64_t count,
                       float* out) {
  if (plane < rows.planes)
    load_floats(rows.view, row, plane, feature, count, out);
  else
    load_floats(rows.factor, row, 0, feature, count, out);
}

inline void store_plane(const Rows& rows, int64_t row, int plane, int64_t feature, int64_t count,
                        const float* from) {
  const bool own = plane < rows.planes;
  const View& view = own ? rows.view : rows.factor;
  if (view.data) store_floats(view, row, own ? plane : 0, feature, count, from);
}

inline const float* floats_at(const Rows& rows, int64_t row, int plane, int64_t feature) {
  return plane < rows.planes ? run_at<float>(rows.view, row, plane, feature)
                             : run_at<float>(rows.factor, row, 0, feature);
}

// True if rows are plain float32, which kernels read in place.
inline bool is_direct(const Rows& rows) {
  const auto plain = [](const View& view) { return view.dtype == DType::f32 && view.step == 1; };
  return plain(rows.view) && (!rows.factor.data || plain(rows.factor));
}

}  // namespace
}  // namespace kgfast
