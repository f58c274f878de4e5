// The sweep: a panel of candidates in lanes against tiles of queries in registers.
//
// Cost model (rotate, AVX-512): 4 queries x 4 vectors of 16 candidates; per feature 8 vector loads
// and 8 broadcasts for 16 x 6 arithmetic instructions. Sums run over 64 features in registers and
// are then folded into totals, which keeps the error bound short and is where a tile is abandoned.
// A panel is packed once and stays in the second-level cache while every tile sweeps it.
#pragma once
#include <cfloat>
#include <cstring>

#include "canonical.h"
#include "fpmode.h"
#include "job.h"
#include "load.h"
#include "scores.h"

namespace kgfast {
namespace {

constexpr int64_t kSumBlock = 64;   // features per short accumulator
constexpr int64_t kPackBlock = 64;  // features transposed at a time
constexpr int kMaxLanes = 64;

template <class Score>
constexpr int lanes_of() {
  return Score::vectors * Simd::W;
}

inline int64_t candidate_of(const SweepJob& job, int64_t position) {
  return job.candidate_ids ? job.candidate_ids[position] : position;
}

// ---------------------------------------------------------------------------------- packing

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
                Worker& worker, float* lane_norm) {
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
  if (job.norm) accumulate_norm<Score>(job.norm, worker.panel, count * P, lane_norm);
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

// -------------------------------------------------------------------------------- register tile

// sums[a][b] += the terms of `count` features. `tile` points at query a = 0 of this sub-tile.
template <class Score, int Q>
inline void accumulate(const float* panel, const float* tile, int64_t count,
                       V (&sums)[Q][Score::vectors]) {
  constexpr int L = lanes_of<Score>(), P = Score::planes, B = Score::vectors;
  constexpr int stride = Score::tile_queries;
  for (int64_t k = 0; k < count; ++k) {
    V c[B][P], q[P];
#pragma GCC unroll 4
    for (int b = 0; b < B; ++b)
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) c[b][p] = Simd::load(panel + (k * P + p) * L + b * Simd::W);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) q[p] = Simd::set1(tile[(k * P + p) * stride + a]);
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Score::add(sums[a][b], q, c[b]);
    }
  }
}

// Whether every lane of every query is finite and past its query's limit.
template <class Score, int Q>
inline bool all_past(const V (&totals)[Q][Score::vectors], const float* limits) {
  const V huge = Simd::set1(FLT_MAX);
  constexpr uint32_t full = (1u << Simd::W) - 1;
  for (int a = 0; a < Q; ++a) {
    const V limit = Simd::set1(limits[a]);
    for (int b = 0; b < Score::vectors; ++b) {
      // Monotone sums are not negative, so "not above FLT_MAX and not NaN" is total < inf.
      if ((Simd::less(limit, totals[a][b]) & ~Simd::less(huge, totals[a][b])) != full)
        return false;
    }
  }
  return true;
}

// Adds `count` features to totals; false when the tile was abandoned.
template <class Score, int Q>
inline bool run_tile(const float* panel, const float* tile, int64_t count, const float* limits,
                     V (&totals)[Q][Score::vectors]) {
  constexpr int B = Score::vectors, P = Score::planes;
  for (int64_t k = 0; k < count; k += kSumBlock) {
    const int64_t width = count - k < kSumBlock ? count - k : kSumBlock;
    V sums[Q][B];
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) sums[a][b] = Simd::zero();
    accumulate<Score, Q>(panel + k * P * lanes_of<Score>(), tile + k * P * Score::tile_queries,
                         width, sums);
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int b = 0; b < B; ++b) totals[a][b] = Simd::add(totals[a][b], sums[a][b]);
    if (Score::monotone && k + width < count && all_past<Score, Q>(totals, limits)) return false;
  }
  return true;
}

// ------------------------------------------------------------------------------------- deciding

// What is the same for every tile of a panel.
struct PanelFacts {
  int64_t first;  // position of lane 0 among the candidates
  int valid;      // lanes that hold a candidate
  float norm;
  alignas(64) float bias[kMaxLanes];
};

// A total above this, in the units of `totals`, cannot reach any target of query `position`.
template <class Score>
inline float abandon_limit(const SweepJob& job, int64_t position, float norm) {
  float limit = -FLT_MAX;
  for (int64_t i = job.first_threshold[position]; i < job.first_threshold[position + 1]; ++i) {
    const Threshold& t = job.thresholds[i];
    const float tau = t.minus_target + (job.bias ? job.bias_max : 0.0f);
    const float reach = tau + 1.25f * (job.rel * std::fabs(tau) + (t.base + t.slope * norm));
    if (!(reach <= limit)) limit = reach;  // keeps a NaN, which no total is above
  }
  if (Score::id != ScoreId::l2) return limit;
  return limit < 0.0f ? -1.0f : limit * limit * (1.0f + 0x1p-20f);
}

// Counts the pairs that the bound decides for one target and appends the others to the band.
template <class Score>
inline void classify(const SweepJob& job, const PanelFacts& facts, const V* distances,
                     const Threshold& t, Worker& worker) {
  const V minus_target = Simd::set1(t.minus_target), rel = Simd::set1(job.rel);
  const V absolute = Simd::set1(t.base + t.slope * facts.norm), huge = Simd::set1(FLT_MAX);
  int64_t greater = 0;
  for (int b = 0; b < Score::vectors; ++b) {
    const int first_lane = b * Simd::W;
    if (first_lane >= facts.valid) break;
    const int left = facts.valid - first_lane;
    const uint32_t mask = left >= Simd::W ? (1u << Simd::W) - 1 : (1u << left) - 1;
    const V tau = Simd::add(Simd::load(facts.bias + first_lane), minus_target);
    const V err = Simd::fma(rel, Simd::abs(tau), absolute);
    const uint32_t beats = Simd::less(distances[b], Simd::sub(tau, err)) &
                           Simd::less(Simd::sub(Simd::zero(), huge), distances[b]);
    const uint32_t loses = Simd::less(Simd::add(tau, err), distances[b]) &
                           Simd::less(distances[b], huge);
    greater += __builtin_popcount(beats & mask);
    for (uint32_t open = mask & ~(beats | loses); open; open &= open - 1) {
      const int lane = first_lane + __builtin_ctz(open);
      worker.band[worker.band_size++] = {t.row, candidate_of(job, facts.first + lane)};
    }
  }
  worker.greater[t.row] += greater;
}

// All targets of query `position`.
template <class Score>
inline void classify_all(const SweepJob& job, const PanelFacts& facts, const V* totals,
                         int64_t position, Worker& worker) {
  V distances[Score::vectors];
  for (int b = 0; b < Score::vectors; ++b) distances[b] = Score::finish(totals[b]);
  for (int64_t i = job.first_threshold[position]; i < job.first_threshold[position + 1]; ++i) {
    if (worker.band_size + kMaxLanes > worker.band_capacity) decide_band<Score>(job, worker);
    classify<Score>(job, facts, distances, job.thresholds[i], worker);
  }
}

template <class Score>
PanelFacts panel_facts(const SweepJob& job, int64_t panel) {
  constexpr int L = lanes_of<Score>();
  PanelFacts facts;
  facts.first = panel * L;
  const int64_t left = job.num_candidates - facts.first;
  facts.valid = static_cast<int>(left < L ? left : L);
  facts.norm = 0.0f;
  for (int lane = 0; lane < L; ++lane) {
    const bool used = job.bias && lane < facts.valid;
    facts.bias[lane] = used ? job.bias[candidate_of(job, facts.first + lane)] : 0.0f;
  }
  return facts;
}

// Sub-tile of Q queries from `position` on: sweep one block of features, decide after the last.
template <class Score, int Q>
void sweep_tile(const SweepJob& job, const PanelFacts& facts, int64_t position, int64_t feature,
                int64_t count, const float* limits, Worker& worker) {
  constexpr int L = lanes_of<Score>(), B = Score::vectors, T = Score::tile_queries;
  const bool first_block = feature == 0, last_block = feature + count == job.num_features;
  const int64_t tile = position / T;
  if (!first_block && !worker.alive[tile]) return;
  float* saved = first_block && last_block ? nullptr : worker.totals + position * L;
  V totals[Q][B];
  for (int a = 0; a < Q; ++a)
    for (int b = 0; b < B; ++b)
      totals[a][b] = first_block ? Simd::zero() : Simd::load(saved + a * L + b * Simd::W);
  const float* queries = job.packed_queries +
                         (tile * job.num_features + feature) * Score::planes * T + position % T;
  const bool alive = run_tile<Score, Q>(worker.panel, queries, count, limits, totals);
  if (!last_block) {
    for (int a = 0; a < Q; ++a)
      for (int b = 0; b < B; ++b) Simd::store(saved + a * L + b * Simd::W, totals[a][b]);
    worker.alive[tile] = Q == T ? alive : true;  // a lone query is decided at its end
    return;
  }
  if (!alive) return;
  for (int a = 0; a < Q && position + a < job.num_queries; ++a)
    classify_all<Score>(job, facts, totals[a], position + a, worker);
}

template <class Score>
void sweep_block(const SweepJob& job, const PanelFacts& facts, int64_t feature, int64_t count,
                 Worker& worker) {
  constexpr int T = Score::tile_queries;
  const bool whole = count == job.num_features;
  const FloatMode mode(FloatMode::kFlush);
  for (int64_t position = 0; position < job.num_queries; position += T) {
    float limits[T];
    for (int a = 0; Score::monotone && a < T; ++a) {
      const bool known = whole || !job.norm;  // a norm is complete only after the last block
      const int64_t query = position + a < job.num_queries ? position + a : job.num_queries - 1;
      limits[a] = known ? abandon_limit<Score>(job, query, facts.norm) : FLT_MAX;
    }
    const int64_t left = job.num_queries - position;
    if (left > T / 2) {
      sweep_tile<Score, T>(job, facts, position, feature, count, limits, worker);
    } else {
      for (int64_t a = 0; a < left; ++a)
        sweep_tile<Score, 1>(job, facts, position + a, feature, count, limits + a, worker);
    }
  }
}

template <class Score>
void sweep_panel(const SweepJob& job, int64_t panel, Worker& worker) {
  const FloatMode mode(FloatMode::kIeee);
  PanelFacts facts = panel_facts<Score>(job, panel);
  alignas(64) float lane_norm[kMaxLanes] = {};
  for (int64_t feature = 0; feature < job.num_features; feature += job.features_per_block) {
    const int64_t left = job.num_features - feature;
    const int64_t count = left < job.features_per_block ? left : job.features_per_block;
    pack_panel<Score>(job, facts.first, facts.valid, feature, count, worker, lane_norm);
    if (feature + count == job.num_features) facts.norm = panel_norm<Score>(job, lane_norm);
    sweep_block<Score>(job, facts, feature, count, worker);
  }
}

// ------------------------------------------------------------------ for tests and for the roof

// Distances of one panel as the sweep computes them, [Q][lanes]; features in one block.
template <class Score>
void sweep_values(const SweepJob& job, int64_t panel, Worker& worker, float* out, float* norm) {
  constexpr int L = lanes_of<Score>(), T = Score::tile_queries;
  const PanelFacts facts = panel_facts<Score>(job, panel);
  alignas(64) float lane_norm[kMaxLanes] = {};
  float limits[T];
  for (float& limit : limits) limit = FLT_MAX;
  pack_panel<Score>(job, facts.first, facts.valid, 0, job.num_features, worker, lane_norm);
  *norm = panel_norm<Score>(job, lane_norm);
  const FloatMode mode(FloatMode::kFlush);
  for (int64_t position = 0; position < job.num_queries; position += T) {
    V totals[T][Score::vectors];
    for (auto& row : totals)
      for (V& total : row) total = Simd::zero();
    run_tile<Score, T>(worker.panel,
                       job.packed_queries + position * job.num_features * Score::planes,
                       job.num_features, limits, totals);
    for (int a = 0; a < T && position + a < job.num_queries; ++a)
      for (int b = 0; b < Score::vectors; ++b)
        Simd::store(out + (position + a) * L + b * Simd::W, Score::finish(totals[a][b]));
  }
}

template <class Score>
float bare_loop(const float* panel, const float* tile, int64_t features, int64_t repeats) {
  V sums[Score::tile_queries][Score::vectors];
  for (auto& row : sums)
    for (V& sum : row) sum = Simd::zero();
  for (int64_t i = 0; i < repeats; ++i)
    accumulate<Score, Score::tile_queries>(panel, tile, features, sums);
  float lanes[Simd::W], total = 0.0f;
  for (auto& row : sums)
    for (V& sum : row) {
      Simd::store(lanes, sum);
      for (float lane : lanes) total += lane;
    }
  return total;
}

// ----------------------------------------------------------------------------------- the table

template <class F>
inline auto with_score(ScoreId id, F&& call) {
  switch (id) {
    case ScoreId::dot: return call(Dot{});
    case ScoreId::l1: return call(L1{});
    case ScoreId::l2: return call(L2{});
    default: return call(Rotate{});
  }
}

inline Isa make_isa(const char* name) {
  Isa isa;
  isa.name = name;
  isa.sqrt_error = Simd::sqrt_error;
  isa.lanes = [](ScoreId id) {
    return with_score(id, [](auto score) { return lanes_of<decltype(score)>(); });
  };
  isa.tile_queries = [](ScoreId id) {
    return with_score(id, [](auto score) { return int{decltype(score)::tile_queries}; });
  };
  isa.pack_queries = [](const SweepJob& job, float* out) {
    with_score(job.score, [&](auto score) { pack_queries<decltype(score)>(job, out); });
  };
  isa.sweep_panel = [](const SweepJob& job, int64_t panel, Worker& worker) {
    with_score(job.score, [&](auto score) { sweep_panel<decltype(score)>(job, panel, worker); });
  };
  isa.decide_band = [](const SweepJob& job, Worker& worker) {
    with_score(job.score, [&](auto score) { decide_band<decltype(score)>(job, worker); });
  };
  isa.canonical = [](const SweepJob& job, const Pair* pairs, int64_t count, double* scratch,
                     double* out) {
    with_score(job.score, [&](auto score) {
      canonical_scores<decltype(score)>(job, pairs, count, scratch, out);
    });
  };
  isa.sweep_values = [](const SweepJob& job, int64_t panel, Worker& worker, float* out,
                        float* norm) {
    with_score(job.score, [&](auto score) {
      sweep_values<decltype(score)>(job, panel, worker, out, norm);
    });
  };
  isa.bare_loop = [](ScoreId id, const float* panel, const float* tile, int64_t features,
                     int64_t repeats) {
    return with_score(id, [&](auto score) {
      return bare_loop<decltype(score)>(panel, tile, features, repeats);
    });
  };
  return isa;
}

}  // namespace
}  // namespace kgfast
