// Packing: candidates into panels of lanes, queries into tiles, both feature-major.
//
// Cost model: a panel of float32 rows is one pass of W x W transposes in registers, about two cycles a
// number where the table comes from memory; other dtypes and strides are converted first.
#pragma once
#include <cmath>
#include <cstring>

#include "fpmode.h"
#include "job.h"
#include "load.h"
#include "scores.h"

namespace kgfast {
namespace {

constexpr int64_t kPackBlock = 64;  // features converted at a time
constexpr int kMaxLanes = 64;

template <class Score>
constexpr int lanes_of() {
  return Score::vectors * Simd::W;
}

inline int64_t candidate_of(const SweepJob& job, int64_t position) {
  return job.candidate_ids ? job.candidate_ids[position] : position;
}

template <class Score>
inline void accumulate_norm(int norm, const float* packed, int64_t count, float* lane_norm) {
  constexpr int L = lanes_of<Score>();
  for (int b = 0; b < Score::vectors; ++b) {
    V sum = Simd::load(lane_norm + b * Simd::W);
    for (int64_t i = 0; i < count; ++i) {
      const V x = Simd::load(packed + i * L + b * Simd::W);
      sum = norm == 1 ? Simd::add(sum, Simd::abs(x)) : Simd::fma(x, x, sum);
    }
    Simd::store(lane_norm + b * Simd::W, sum);
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

// Notes the lowest row of a panel that holds a number that is not finite.
template <class Score>
void find_nonfinite(const SweepJob& job, int64_t first, int valid, Worker& worker) {
  float run[kPackBlock];
  for (int lane = 0; lane < valid; ++lane) {
    const int64_t row = candidate_of(job, first + lane);
    for (int plane = 0; plane < Score::planes; ++plane)
      for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
        const int64_t left = job.num_features - k;
        if (load_floats(job.table, row, plane, k, left < kPackBlock ? left : kPackBlock, run) &&
            row < worker.bad_candidate)
          worker.bad_candidate = row;
      }
  }
}

// Transposes `width` features of W rows into one column of vectors of the panel.
template <class Score>
inline void transpose_rows(const float* const* rows, int64_t width, float* out) {
  constexpr int W = Simd::W;
  constexpr int64_t stride = Score::planes * lanes_of<Score>();
  int64_t i = 0;
  for (; i + W <= width; i += W) Simd::transpose(rows, i, out + i * stride, stride);
  for (; i < width; ++i)
    for (int lane = 0; lane < W; ++lane) out[i * stride + lane] = rows[lane][i];
}

// Writes features [feature, feature + count) of one panel as [feature][plane][lane], W rows at a
// time so that few streams are read at once. Lanes past the last candidate repeat it.
template <class Score>
void pack_panel(const SweepJob& job, int64_t first, int valid, int64_t feature, int64_t count,
                Worker& worker) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, W = Simd::W;
  const bool direct = job.table.dtype == DType::f32 && job.table.step == 1;
  alignas(64) float converted[W * kPackBlock];
  const float* rows[W];
  int64_t ids[W];
  bool bad = false;
  for (int lane = 0; lane < L; lane += W) {
    for (int i = 0; i < W; ++i)
      ids[i] = candidate_of(job, first + (lane + i < valid ? lane + i : valid - 1));
    for (int plane = 0; plane < P; ++plane) {
      float* out = worker.panel + plane * L + lane;
      if (direct) {
        for (int i = 0; i < W; ++i) rows[i] = run_at<float>(job.table, ids[i], plane, feature);
        transpose_rows<Score>(rows, count, out);
        continue;
      }
      for (int64_t k = 0; k < count; k += kPackBlock) {
        const int64_t width = count - k < kPackBlock ? count - k : kPackBlock;
        for (int i = 0; i < W; ++i) {
          rows[i] = converted + i * kPackBlock;
          bad |= load_floats(job.table, ids[i], plane, feature + k, width,
                             converted + i * kPackBlock);
        }
        transpose_rows<Score>(rows, width, out + k * P * L);
      }
    }
  }
  if (direct) bad = has_nonfinite(worker.panel, count * P * L);
  if (bad) find_nonfinite<Score>(job, first, valid, worker);
}

// An upper bound on the norm of every candidate of a panel.
template <class Score>
float panel_norm(const SweepJob& job, const float* lane_norm) {
  if (!job.norm) return 0.0f;
  float largest = 0.0f;
  for (int lane = 0; lane < lanes_of<Score>(); ++lane) {
    if (!(lane_norm[lane] <= largest)) largest = lane_norm[lane];  // keeps a NaN
  }
  const float bound = largest * job.norm_inflation + job.norm_floor;
  return job.norm == 1 ? bound : std::sqrt(bound) * (1.0f + 0x1p-20f);
}

// [tile][feature][plane][query]; the last tile repeats its last query.
template <class Score>
void pack_queries(const SweepJob& job, float* out) {
  constexpr int Q = Score::tile_queries, P = Score::planes;
  const FloatMode mode(FloatMode::kIeee);
  float run[kPackBlock];
  const int64_t tiles = (job.num_queries + Q - 1) / Q;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int a = 0; a < Q; ++a) {
      const int64_t position = tile * Q + a;
      const int64_t last = job.num_queries - 1;
      const int64_t row = job.query_ids[position < last ? position : last];
      float* to = out + tile * job.num_features * P * Q + a;
      for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
        const int64_t left = job.num_features - k;
        const int64_t width = left < kPackBlock ? left : kPackBlock;
        for (int plane = 0; plane < P; ++plane) {
          load_floats(job.query, row, plane, k, width, run);
          for (int64_t i = 0; i < width; ++i)
            to[((k + i) * P + plane) * Q] = Score::query_sign * run[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace kgfast
