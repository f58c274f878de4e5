// Packing: candidates into panels of lanes, queries into tiles, both feature-major.
//
// Cost model: a panel of float32 rows is one pass of W x W transposes in registers; other dtypes
// and strides are converted first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/consumers.h"
#include "host/fpmode.h"
#include "host/job.h"
#include "host/store.h"
#include "scores/common.h"
#include "scores/phase.h"

namespace kgfast {
namespace {

constexpr int kMaxLanes = 64;

inline void accumulate_norm(Norm norm, const float* packed, int64_t count, int lanes,
                            float* lane_norm) {
  for (int lane = 0; lane < lanes; lane += Simd::W) {
    V sum = Simd::load(lane_norm + lane);
    for (int64_t i = 0; i < count; ++i) {
      const V x = Simd::load(packed + i * lanes + lane);
      sum = norm == Norm::magnitudes ? Simd::add(sum, Simd::abs(x)) : Simd::fma(x, x, sum);
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

// Notes the lowest row of a panel that holds a number that is not finite.
inline void find_nonfinite(const SweepJob& job, int64_t first, int valid, Worker& worker) {
  for (int lane = 0; lane < valid; ++lane)
    check_candidate(job, candidate_of(job, first + lane), &worker.bad_candidate,
                    &worker.bad_factor);
}

// Transposes `width` features of W rows into one column of vectors of the panel.
inline void transpose_rows(const float* const* rows, int64_t width, int64_t stride, float* out) {
  constexpr int W = Simd::W;
  int64_t i = 0;
  for (; i + W <= width; i += W) Simd::transpose(rows, i, out + i * stride, stride);
  for (; i < width; ++i)
    for (int lane = 0; lane < W; ++lane) out[i * stride + lane] = rows[lane][i];
}

// Turns the factors b of a panel into b - 1, and notes the largest |b - 1| of every feature. A NaN
// is skipped, as it makes every sum a NaN.
inline void find_angles(const ScoreFacts& facts, int64_t count, int64_t stride, Worker& worker) {
  for (int64_t k = 0; k < count; ++k) {
    float* factor = worker.room + (k * facts.planes + facts.planes - 1) * facts.lanes;
    V most = Simd::zero();
    for (int lane = 0; lane < facts.lanes; lane += Simd::W) {
      const V x = Simd::sub(Simd::load(factor + lane), Simd::set1(facts.factor_origin));
      Simd::store(factor + lane, x);
      most = Simd::max(Simd::abs(x), most);
    }
    worker.panel_angles[k] = most_of(most);
  }
  for (int64_t k = count; k < stride; ++k) worker.panel_angles[k] = 0.0f;
}

// Moves the rows of a panel for queries that share w and a: u = w * c e^{-ia(b - 1)}.
inline void move_rows(const SweepJob& job, const ScoreFacts& facts, Worker& worker) {
  const float *w = job.shared, *a = w + 2 * job.num_features;
  const int64_t L = facts.lanes;
  for (int64_t k = 0; k < job.num_features; ++k) {
    const bool near = std::fabs(a[k]) * worker.panel_angles[k] < 1.5f;
    const V by = Simd::set1(a[k]);
    for (float* at = worker.room + 3 * k * L; at < worker.room + (3 * k + 1) * L; at += Simd::W) {
      const V re = Simd::mul(Simd::set1(w[k]), Simd::load(at));
      const V im = Simd::mul(Simd::set1(w[job.num_features + k]), Simd::load(at + L));
      const V factor = Simd::load(at + 2 * L), angle = Simd::mul(by, factor);
      const Phasor turn = near ? phasor_within(angle, Simd::mul(angle, angle))
                               : phasor_any(by, factor, Simd::zero(), angle);
      Simd::store(at, Simd::fma(re, turn.cosine, Simd::mul(im, turn.sine)));
      Simd::store(at + L, Simd::minus_product(re, turn.sine, Simd::mul(im, turn.cosine)));
    }
  }
}

// Returns an upper bound on the Euclidean norm of |b - 1|^n of any candidate of a panel, with n
// one more than the terms of a shared turn. Skips candidates with a factor that is not finite, of
// which every sum is a NaN.
inline float norm_of_powers(const SweepJob& job, const ScoreFacts& facts, const Worker& worker) {
  const int64_t L = facts.lanes;
  alignas(64) float lanes[Simd::W];
  float most = 0.0f;
  for (const float* at = worker.panel + 2 * L; at < worker.panel + 3 * L; at += Simd::W) {
    V sum = Simd::zero();
    for (int64_t k = 0; k < job.num_features; ++k) {
      const V x = Simd::load(at + 3 * k * L), square = Simd::mul(x, x);
      sum = Simd::fma(square, job.shared_terms == 1 ? square : Simd::mul(square, square), sum);
    }
    Simd::store(lanes, sum);
    for (const float lane : lanes)
      if (lane > most && lane <= FLT_MAX) most = lane;
  }
  const double features = static_cast<double>(job.num_features);
  const double square = most * (1.0 + (features + 16.0) * 0x1p-23) + features * 0x1p-120;
  return static_cast<float>(std::sqrt(square) * (1.0 + 0x1p-20));
}

// Writes one panel as [feature][plane][lane], W rows at a time so that few streams are read at
// once. Lanes past the last candidate repeat it. `facts` is a constant of the caller, so that the
// compiler makes fixed strides.
__attribute__((noinline)) void pack_panel(const SweepJob& job, const ScoreFacts& facts,
                                          int64_t first, int valid, Worker& worker) {
  constexpr int W = Simd::W;
  const int L = facts.lanes, P = facts.planes, row_planes = P - facts.has_factor;
  const int64_t count = job.num_features;
  const bool direct = is_direct(job.rows);
  alignas(64) float converted[W * kPackBlock];
  const float* rows[W];
  int64_t ids[W];
  bool bad = false;
  for (int lane = 0; lane < L; lane += W) {
    for (int i = 0; i < W; ++i)
      ids[i] = candidate_of(job, first + (lane + i < valid ? lane + i : valid - 1));
    for (int plane = 0; plane < P; ++plane) {
      const View& view = plane < row_planes ? job.rows.view : job.rows.factor;
      const int from = plane < row_planes ? plane : 0;
      float* out = worker.room + plane * L + lane;
      if (direct) {
        for (int i = 0; i < W; ++i) rows[i] = run_at<float>(view, ids[i], from, 0);
        transpose_rows(rows, count, P * L, out);
        continue;
      }
      for (int64_t k = 0; k < count; k += kPackBlock) {
        const int64_t width = count - k < kPackBlock ? count - k : kPackBlock;
        for (int i = 0; i < W; ++i) {
          rows[i] = converted + i * kPackBlock;
          bad |= load_floats(view, ids[i], from, k, width, converted + i * kPackBlock);
        }
        transpose_rows(rows, width, P * L, out + k * P * L);
      }
    }
  }
  if (direct) bad = has_nonfinite(worker.room, count * P * L);
  if (bad) find_nonfinite(job, first, valid, worker);
  if (facts.has_phase) find_angles(facts, count, job.angle_stride, worker);
  if (facts.has_phase && job.shared_terms) move_rows(job, facts, worker);
  worker.panel = worker.room;
}

// Returns an upper bound on the norm of every candidate of a panel.
inline float panel_norm(const SweepJob& job, int lanes, const float* lane_norm) {
  if (job.norm == Norm::none) return 0.0f;
  float largest = 0.0f;
  for (int lane = 0; lane < lanes; ++lane) {
    if (!(lane_norm[lane] <= largest)) largest = lane_norm[lane];  // keeps a NaN
  }
  const float bound = largest * job.norm_inflation + job.norm_floor;
  return job.norm == Norm::magnitudes ? bound : std::sqrt(bound) * (1.0f + 0x1p-20f);
}

// Loads runs of the planes of a query, prepared for the sweep.
inline void load_query(const SweepJob& job, int64_t row, int64_t feature, int64_t count,
                       float (*run)[kPackBlock]) {
  const int planes = job.facts.query_planes;
  if (!job.facts.prepare) {
    for (int plane = 0; plane < planes; ++plane)
      load_floats(job.query, row, plane, feature, count, run[plane]);
    return;
  }
  double exact[kMaxPlanes][kPackBlock];
  for (int plane = 0; plane < planes; ++plane)
    load_doubles(job.query, row, plane, feature, count, exact[plane]);
  job.facts.prepare(exact, count);
  for (int64_t i = 0; job.shared_terms && i < count; ++i) {
    const double apart = exact[4][i] - job.shared[2 * job.num_features + feature + i];
    const double by = job.shared_terms == 1 ? apart : 2.0;
    exact[2][i] = by * exact[0][i];
    exact[3][i] = by * exact[1][i];
    exact[4][i] = 0.5 * apart;
  }
  for (int plane = 0; plane < planes; ++plane)
    for (int64_t i = 0; i < count; ++i) run[plane][i] = static_cast<float>(exact[plane][i]);
}

// Packs some tiles of queries; the last tile repeats its last query.
inline void pack_queries(const SweepJob& job, int64_t first_tile, int64_t last_tile, float* out) {
  const int64_t Q = job.facts.tile_queries, P = job.facts.query_planes;
  const bool has_phase = job.facts.has_phase;
  const FloatMode mode(FloatMode::kIeee);
  float run[kMaxPlanes][kPackBlock];
  const int64_t tiles = (job.num_queries + Q - 1) / Q, last = job.num_queries - 1;
  float* angles = out + tiles * job.num_features * P * Q;
  for (int64_t i = first_tile; has_phase && i < last_tile; ++i)
    std::fill_n(angles + i * job.angle_stride, job.angle_stride, 0.0f);
  for (int64_t position = first_tile * Q; position < last_tile * Q; ++position) {
    const int64_t row = job.query_ids[position < last ? position : last];
    float* to = out + position / Q * job.num_features * P * Q + position % Q;
    for (int64_t k = 0; k < job.num_features; k += kPackBlock) {
      const int64_t left = job.num_features - k;
      const int64_t width = left < kPackBlock ? left : kPackBlock;
      load_query(job, row, k, width, run);
      for (int64_t plane = 0; plane < P; ++plane)
        for (int64_t i = 0; i < width; ++i)
          to[((k + i) * P + plane) * Q] = job.facts.query_sign * run[plane][i];
      for (int64_t i = 0; has_phase && i < width; ++i) {
        float& most = angles[position / Q * job.angle_stride + k + i];
        if (std::fabs(run[P - 1][i]) > most) most = std::fabs(run[P - 1][i]);
      }
    }
  }
}

}  // namespace
}  // namespace kgfast
