// Packing: candidates into panels of lanes, queries into tiles, both feature-major.
//
// Cost model: a panel of float32 rows is one pass of W x W transposes in registers, about two cycles a
// number where the table comes from memory; other dtypes and strides are converted first.
#pragma once
#include <cmath>
#include <cstring>

#include "host/fpmode.h"
#include "host/job.h"
#include "host/load.h"
#include "scores/rscf.h"

namespace kgfast {
namespace {

constexpr int64_t kPackBlock = 64;  // features converted at a time
constexpr int kMaxLanes = 64;

template <class Score>
constexpr int lanes_of() {
  return Score::vectors * Simd::W;
}

// How a score's panels are laid out, [feature][planes][lanes]; packing is compiled once for all.
struct PanelShape {
  int planes, lanes;
  bool has_factor, has_angles;
  float factor_origin;

  int table_planes() const { return planes - has_factor; }
};

template <class Score>
constexpr PanelShape panel_shape() {
  float origin = 0.0f;
  if constexpr (Score::has_factor) origin = Score::factor_origin;
  return {Score::planes, lanes_of<Score>(), Score::has_factor, Score::has_angles, origin};
}

inline int64_t candidate_of(const SweepJob& job, int64_t position) {
  return job.candidate_ids ? job.candidate_ids[position] : position;
}

inline void accumulate_norm(int norm, const float* packed, int64_t count, int lanes,
                            float* lane_norm) {
  for (int lane = 0; lane < lanes; lane += Simd::W) {
    V sum = Simd::load(lane_norm + lane);
    for (int64_t i = 0; i < count; ++i) {
      const V x = Simd::load(packed + i * lanes + lane);
      sum = norm == 1 ? Simd::add(sum, Simd::abs(x)) : Simd::fma(x, x, sum);
    }
    Simd::store(lane_norm + lane, sum);
  }
}

inline bool has_nonfinite(const float* values, int64_t count) {  // count: a multiple of W
  V sum[4] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  for (int64_t i = 0; i < count; i += Simd::W) {
    V& chain = sum[i / Simd::W % 4];
    chain = Simd::fma(Simd::load(values + i), Simd::zero(), chain);  // inf * 0 is a NaN too
  }
  const V all = Simd::add(Simd::add(sum[0], sum[1]), Simd::add(sum[2], sum[3]));
  return Simd::less(Simd::sub(Simd::zero(), Simd::set1(1.0f)), all) != (1u << Simd::W) - 1;
}

inline bool row_has_nonfinite(const View& view, int64_t row, int planes, int64_t features) {
  float run[kPackBlock];
  for (int plane = 0; plane < planes; ++plane)
    for (int64_t k = 0; k < features; k += kPackBlock) {
      const int64_t left = features - k;
      if (load_floats(view, row, plane, k, left < kPackBlock ? left : kPackBlock, run)) return true;
    }
  return false;
}

// Notes the lowest row of a panel that holds a number that is not finite.
inline void find_nonfinite(const SweepJob& job, const PanelShape& shape, int64_t first, int valid,
                           Worker& worker) {
  for (int lane = 0; lane < valid; ++lane) {
    const int64_t row = candidate_of(job, first + lane);
    if (row < worker.bad_candidate &&
        row_has_nonfinite(job.table, row, shape.table_planes(), job.num_features))
      worker.bad_candidate = row;
    if (shape.has_factor && row < worker.bad_factor &&
        row_has_nonfinite(job.factor, row, 1, job.num_features))
      worker.bad_factor = row;
  }
}

// Transposes `width` features of W rows into one column of vectors of the panel.
inline void transpose_rows(const float* const* rows, int64_t width, int64_t stride, float* out) {
  constexpr int W = Simd::W;
  int64_t i = 0;
  for (; i + W <= width; i += W) Simd::transpose(rows, i, out + i * stride, stride);
  for (; i < width; ++i)
    for (int lane = 0; lane < W; ++lane) out[i * stride + lane] = rows[lane][i];
}

// Turns the factors b of a panel into b - 1, and notes the largest of every feature; a NaN, which
// makes every sum a NaN, is none.
inline void find_angles(const PanelShape& shape, int64_t count, int64_t stride, Worker& worker) {
  for (int64_t k = 0; k < count; ++k) {
    float* factor = worker.panel + (k * shape.planes + shape.planes - 1) * shape.lanes;
    V most = Simd::zero();
    for (int lane = 0; lane < shape.lanes; lane += Simd::W) {
      const V x = Simd::sub(Simd::load(factor + lane), Simd::set1(shape.factor_origin));
      Simd::store(factor + lane, x);
      most = Simd::max(Simd::abs(x), most);
    }
    float lanes[Simd::W], largest = 0.0f;
    Simd::store(lanes, most);
    for (const float x : lanes) largest = x > largest ? x : largest;
    worker.panel_angles[k] = largest;
  }
  for (int64_t k = count; k < stride; ++k) worker.panel_angles[k] = 0.0f;
}

// Writes features [feature, feature + count) of one panel as [feature][plane][lane], W rows at a
// time so that few streams are read at once. Lanes past the last candidate repeat it.
__attribute__((noinline)) void pack_panel(const SweepJob& job, const PanelShape& shape,
                                          int64_t first, int valid, int64_t feature,
                                          int64_t count, Worker& worker) {
  constexpr int W = Simd::W;
  const int L = shape.lanes, P = shape.planes, table_planes = shape.table_planes();
  const auto is_direct = [](const View& view) {
    return view.dtype == DType::f32 && view.step == 1;
  };
  const bool direct = is_direct(job.table) && (!shape.has_factor || is_direct(job.factor));
  alignas(64) float converted[W * kPackBlock];
  const float* rows[W];
  int64_t ids[W];
  bool bad = false;
  for (int lane = 0; lane < L; lane += W) {
    for (int i = 0; i < W; ++i)
      ids[i] = candidate_of(job, first + (lane + i < valid ? lane + i : valid - 1));
    for (int plane = 0; plane < P; ++plane) {
      const View& view = plane < table_planes ? job.table : job.factor;
      const int from = plane < table_planes ? plane : 0;
      float* out = worker.panel + plane * L + lane;
      if (direct) {
        for (int i = 0; i < W; ++i) rows[i] = run_at<float>(view, ids[i], from, feature);
        transpose_rows(rows, count, P * L, out);
        continue;
      }
      for (int64_t k = 0; k < count; k += kPackBlock) {
        const int64_t width = count - k < kPackBlock ? count - k : kPackBlock;
        for (int i = 0; i < W; ++i) {
          rows[i] = converted + i * kPackBlock;
          bad |= load_floats(view, ids[i], from, feature + k, width, converted + i * kPackBlock);
        }
        transpose_rows(rows, width, P * L, out + k * P * L);
      }
    }
  }
  if (direct) bad = has_nonfinite(worker.panel, count * P * L);
  if (bad) find_nonfinite(job, shape, first, valid, worker);
  if (shape.has_angles) find_angles(shape, count, job.angle_stride, worker);
}

// An upper bound on the norm of every candidate of a panel.
inline float panel_norm(const SweepJob& job, int lanes, const float* lane_norm) {
  if (!job.norm) return 0.0f;
  float largest = 0.0f;
  for (int lane = 0; lane < lanes; ++lane) {
    if (!(lane_norm[lane] <= largest)) largest = lane_norm[lane];  // keeps a NaN
  }
  const float bound = largest * job.norm_inflation + job.norm_floor;
  return job.norm == 1 ? bound : std::sqrt(bound) * (1.0f + 0x1p-20f);
}

// How a score's queries are laid out, [tile][feature][planes][tile queries].
struct QueryShape {
  int planes, tile_queries;
  float sign;
  void (*prepare)(double (*run)[kPackBlock], int64_t count);  // nullptr where nothing is to be done
};

template <class Score>
void prepare_run(double (*run)[kPackBlock], int64_t count) {
  constexpr int P = Score::query_planes;
  for (int64_t i = 0; i < count; ++i) {
    double q[P];
    for (int plane = 0; plane < P; ++plane) q[plane] = run[plane][i];
    Score::prepare(q);
    for (int plane = 0; plane < P; ++plane) run[plane][i] = q[plane];
  }
}

template <class Score>
constexpr QueryShape query_shape() {
  QueryShape shape{Score::query_planes, Score::tile_queries, Score::query_sign, nullptr};
  if constexpr (Score::has_angles) shape.prepare = prepare_run<Score>;
  return shape;
}

// Runs of the planes of a query as the sweep takes them.
inline void load_query(const SweepJob& job, const QueryShape& shape, int64_t row, int64_t feature,
                       int64_t count, float (*run)[kPackBlock]) {
  if (!shape.prepare) {
    for (int plane = 0; plane < shape.planes; ++plane)
      load_floats(job.query, row, plane, feature, count, run[plane]);
    return;
  }
  double exact[kMaxPlanes][kPackBlock];
  for (int plane = 0; plane < shape.planes; ++plane)
    load_doubles(job.query, row, plane, feature, count, exact[plane]);
  shape.prepare(exact, count);
  for (int plane = 0; plane < shape.planes; ++plane)
    for (int64_t i = 0; i < count; ++i) run[plane][i] = static_cast<float>(exact[plane][i]);
}

// The last tile repeats its last query. The angles of tiles, if the score has some, follow.
inline void pack_queries(const SweepJob& job, const QueryShape& shape, float* out) {
  const int64_t Q = shape.tile_queries, P = shape.planes;
  const bool has_angles = shape.prepare != nullptr;
  const FloatMode mode(FloatMode::kIeee);
  float run[kMaxPlanes][kPackBlock];
  const int64_t tiles = (job.num_queries + Q - 1) / Q, last = job.num_queries - 1;
  float* angles = out + tiles * job.num_features * P * Q;
  for (int64_t i = 0; has_angles && i < tiles * job.angle_stride; ++i) angles[i] = 0.0f;
  for (int64_t position = 0; position < tiles * Q; ++position) {
    const int64_t row = job.query_ids[position < last ? position : last];
    float* to = out + position / Q * job.num_features * P * Q + position % Q;
    for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
      const int64_t left = job.num_features - k;
      const int64_t width = left < kPackBlock ? left : kPackBlock;
      load_query(job, shape, row, k, width, run);
      for (int64_t plane = 0; plane < P; ++plane)
        for (int64_t i = 0; i < width; ++i)
          to[((k + i) * P + plane) * Q] = shape.sign * run[plane][i];
      for (int64_t i = 0; has_angles && i < width; ++i) {
        float& most = angles[position / Q * job.angle_stride + k + i];
        if (std::fabs(run[P - 1][i]) > most) most = std::fabs(run[P - 1][i]);
      }
    }
  }
}

}  // namespace
}  // namespace kgfast
