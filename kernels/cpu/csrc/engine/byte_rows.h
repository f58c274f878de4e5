// Distances of bytes: a panel of 64 candidates against a few queries, from memory.
//
// Cost model: for 64 bytes of candidates l1 takes 2 instructions of AVX-512 beside a load, l2 9,
// and rotate 22 for its two planes (AVX2: twice as many); 64 bytes come from memory in 12 cycles.
#pragma once
#include <cmath>
#include <cstring>

#include "engine/consumers.h"
#include "engine/sweep.h"
#include "host/byte_rows.h"

namespace kgfast {
namespace {

using B = Bytes::B;
using I = Bytes::I;
constexpr int kByteLanes = Bytes::W / kByteRun;  // candidates of a vector

// Sums of one query and the candidates of a vector. `add` takes 8 numbers of each; `store` gives
// whole numbers, which are distances in units of `unit` (l2: their squares).
template <class Score>
struct ByteSums;

template <>
struct ByteSums<L1> {
  static constexpr float unit = 1.0f;
  I sum = Bytes::zero();
  void add(const B* q, const B* c) { sum = Bytes::add_distances(sum, q[0], c[0]); }
  void store(int32_t* out) const { Bytes::store_pairs(out, sum); }
};

template <>
struct ByteSums<L2> {
  static constexpr float unit = 1.0f;
  I sum = Bytes::zero();
  void add(const B* q, const B* c) { sum = Bytes::add_squares(sum, Bytes::distance(q[0], c[0])); }
  void store(int32_t* out) const { Bytes::store_pairs(out, sum); }
};

// By Cauchy and Schwarz a x + b y <= |(x, y)| where a^2 + b^2 <= 1. The larger of two such
// directions is at most 2.3 % below a modulus, and 0.7 % on average.
constexpr int kModulus = 86;  // 1, in units of these weights of the larger and the smaller side
constexpr int kSteep[2] = {85, 13}, kFlat[2] = {72, 47};
static_assert(kSteep[0] * kSteep[0] + kSteep[1] * kSteep[1] <= kModulus * kModulus);
static_assert(kFlat[0] * kFlat[0] + kFlat[1] * kFlat[1] <= kModulus * kModulus);
static_assert(255 * (kFlat[0] + kFlat[1]) < 1 << 15);

template <>
struct ByteSums<Rotate> {
  static constexpr float unit = 1.0f / kModulus;
  I low = Bytes::zero(), high = Bytes::zero();
  void add(const B* q, const B* c) {
    const B x = Bytes::distance(q[0], c[0]), y = Bytes::distance(q[1], c[1]);
    Bytes::add_larger<kSteep[0], kSteep[1], kFlat[0], kFlat[1]>(low, high, Bytes::max(x, y),
                                                                Bytes::min(x, y));
  }
  void store(int32_t* out) const { Bytes::store_pairs(out, Bytes::fold(low, high)); }
};

// Calls with the functor of a distance.
template <class F>
inline void with_byte_score(ScoreId id, F&& call) {
  with_one_of<L1, L2, Rotate>(id, call);
}

// Bytes that are prefetched ahead, into the second-level cache: rotate from memory then takes 0.3
// to 0.6 of the time. The first-level cache gains nothing.
constexpr int64_t kBytesAhead = 8192;

// Computes sums [64] for each of Q queries from `queries` on.
template <class Score, int Q>
inline void byte_sums(const char* panel, const uint8_t* queries, int64_t padded,
                      int32_t (*out)[kByteCandidates]) {
  constexpr int P = Score::planes;
  for (int64_t lane = 0; lane < kByteCandidates; lane += kByteLanes) {
    const int64_t column = lane / kByteColumn * kByteColumn, within = (lane - column) * kByteRun;
    const int64_t start = column * P * padded;
    ByteSums<Score> sums[Q];
    for (int64_t k = 0; k < padded; k += kByteRun) {
      B c[P], q[P];
      for (int p = 0; p < P; ++p) {
        const int64_t at = start + (p * padded + k) * kByteColumn;
        if (!within) __builtin_prefetch(panel + at + kBytesAhead, 0, 2);
        c[p] = Bytes::load(panel + at + within);
      }
#pragma GCC unroll 4
      for (int a = 0; a < Q; ++a) {
        for (int p = 0; p < P; ++p) q[p] = Bytes::set_run(queries + (a * P + p) * padded + k);
        sums[a].add(q, c);
      }
    }
    for (int a = 0; a < Q; ++a) sums[a].store(out[a] + lane);
  }
}

// Computes the sums of all queries of a job.
template <class Score>
inline void all_byte_sums(const ByteJob& job, int64_t panel, int32_t (*out)[kByteCandidates]) {
  const SweepJob& sweep = *job.sweep;
  const int64_t padded = byte_padded(sweep.num_features), queries = sweep.num_queries;
  const int64_t query_bytes = Score::planes * padded;
  const char* packed =
      sweep.packed.bytes + panel * byte_panel_bytes(sweep.num_features, Score::planes);
  int64_t i = 0;
  for (; i + 4 <= queries; i += 4)
    byte_sums<Score, 4>(packed, job.queries + i * query_bytes, padded, out + i);
  for (; i < queries; ++i)
    byte_sums<Score, 1>(packed, job.queries + i * query_bytes, padded, out + i);
}

// Returns the distances of a vector of sums; distances of rotate may be too small.
template <class Score>
inline V byte_distance(const int32_t* sums, float scale) {
  const V sum = Bytes::to_floats(Bytes::load_ints(sums));
  const V length = Score::terms == Terms::squares ? Simd::sqrt(sum) : sum;
  return Simd::mul(length, Simd::set1(scale * ByteSums<Score>::unit));
}

constexpr float kByteRel = 0x1p-19f;  // for roundings of a distance, and of the canonical score

// Returns the bounds on |r| of a panel's candidates.
inline const float* byte_moved(const SweepJob& job, int64_t panel) {
  const int64_t bytes = byte_panel_bytes(job.num_features, job.facts.planes);
  return reinterpret_cast<const float*>(job.packed.bytes + (panel + 1) * bytes) - kByteCandidates;
}

// Returns the costs of a panel's candidates, whose high ends are unknown. The low end is
// v (1 - rel) less |r| of both rows and the bias; 2^-21 of each is for roundings.
template <class Score>
inline Costs<kByteCandidates / Simd::W> byte_costs(const ByteJob& job, const PanelFacts& facts,
                                                   const float* moved, int64_t position,
                                                   const int32_t* sums) {
  const V both = Simd::set1(job.moved[position] + job.sweep->errors[position].base);
  const float scale = job.sweep->packed.scale * (1.0f - kByteRel);
  Costs<kByteCandidates / Simd::W> costs;
  costs.first = facts.first;
  costs.valid = first_lanes(facts.valid);
  for (int b = 0; b < kByteCandidates / Simd::W; ++b) {
    const V distance = byte_distance<Score>(sums + b * Simd::W, scale);
    const V bias = Simd::load(facts.bias + b * Simd::W);
    const V rest = Simd::add(both, Simd::load(moved + b * Simd::W));
    const V size = Simd::add(Simd::add(distance, rest), Simd::abs(bias));
    costs.low[b] = Simd::fma(size, Simd::set1(-0x1p-21f),
                             Simd::sub(Simd::sub(distance, rest), bias));
    costs.high[b] = Simd::set1(INFINITY);
  }
  return costs;
}

// Sweeps the candidates of a panel of bytes in float32.
inline void sweep_floats(const SweepJob& job, int64_t panel, Worker& worker) {
  const int64_t panels = kByteCandidates / job.facts.lanes, first = panel * panels;
  for (int64_t i = first; i < first + panels && i * job.facts.lanes < job.num_candidates; ++i)
    job.isa->sweep_panel(job, i, worker);
}

constexpr int kByteOpen = 16;  // open candidates of a query that cost less than a float32 panel

// Keeps open candidates if they are few, or a worker's first: canonical scores of the most
// promising decide later. Otherwise float32 sweeps this panel and some panels after this one.
template <class Score>
void sweep_byte_panel(const ByteJob& job, int64_t panel, Worker& worker) {
  const SweepJob& sweep = *job.sweep;
  const int64_t queries = sweep.num_queries;
  if (worker.bytes_pause.left) {
    --worker.bytes_pause.left;
    return sweep_floats(sweep, panel, worker);
  }
  const FloatMode mode(FloatMode::kIeee);
  const PanelFacts facts = panel_facts(sweep, kByteCandidates, panel);
  alignas(64) int32_t sums[kByteQueries][kByteCandidates];
  Costs<kByteCandidates / Simd::W> costs[kByteQueries];
  int64_t count = 0;
  all_byte_sums<Score>(job, panel, sums);
  for (int64_t i = 0; i < queries; ++i) {
    costs[i] = byte_costs<Score>(job, facts, byte_moved(sweep, panel), i, sums[i]);
    count += __builtin_popcountll(open_lanes(sweep, i, costs[i]));
  }
  const bool are_first = worker.kept[0] < sweep.k;
  const bool was_worth_it = are_first || count <= kByteOpen * queries;
  pause_bytes(was_worth_it, worker.bytes_pause);
  if (!was_worth_it) sweep_floats(sweep, panel, worker);
  for (int64_t i = 0; was_worth_it && count && i < queries; ++i)
    take(sweep, 0, i, costs[i], worker);
  for (int64_t i = 0; (are_first || !was_worth_it) && i < queries; ++i) settle(sweep, i, worker);
}

// Returns a factor that turns a computed length of the rest r into an upper bound.
inline float length_inflation(const SweepJob& job) {
  constexpr float root = static_cast<float>(2.0 * Simd::sqrt_error);
  return 1.0f + root + static_cast<float>(job.num_features * job.facts.planes + 16) * 0x1p-22f;
}

// Packs a row, and returns the length of its rest r. `scratch` has zeros after the features.
template <class Score>
float pack_byte_row(const float* scratch, int64_t features, float scale, char* to) {
  constexpr int P = Score::planes;
  constexpr int64_t step = Simd::W < kByteRun ? kByteRun : Simd::W;
  const int64_t padded = byte_padded(features), stride = byte_scratch(features);
  const V inverse = Simd::set1(1.0f / scale), unit = Simd::set1(scale);
  const V least = Simd::set1(-static_cast<float>(kByteMost));
  V sum = Simd::zero();
  for (int64_t k = 0; k < padded; k += step) {
    uint8_t bytes[P][step];
    for (int64_t i = 0; i < step; i += Simd::W) {
      V rest[P], zeros[P];
      for (int p = 0; p < P; ++p) {
        const V x = Simd::load(scratch + p * stride + k + i), t = Simd::mul(x, inverse);
        const V below = Simd::max(Simd::sub(Simd::zero(), t), least);  // - min(t, most)
        const I whole = Bytes::round(Simd::max(Simd::sub(Simd::zero(), below), least));
        Bytes::store_bytes(bytes[p] + i, whole);
        rest[p] = Simd::minus_product(Bytes::to_floats(whole), unit, x);
        zeros[p] = Simd::zero();
      }
      sum = Score::add(sum, rest, zeros);
    }
    for (int p = 0; p < P; ++p)
      for (int64_t i = 0; i < step && k + i < padded; i += kByteRun)
        std::memcpy(to + (p * padded + k + i) * kByteColumn, bytes[p] + i, kByteRun);
  }
  float lanes[Simd::W], total = 0.0f;
  Simd::store(lanes, sum);
  for (const float lane : lanes) total += lane;
  return Score::terms == Terms::squares ? std::sqrt(total) : total;
}

template <class Score>
void pack_byte_panel(const SweepJob& job, int64_t panel, float scale, float* scratch, char* out) {
  constexpr int P = Score::planes;
  const FloatMode mode(FloatMode::kIeee);
  const int64_t features = job.num_features, padded = byte_padded(features);
  const int64_t stride = byte_scratch(features), first = panel * kByteCandidates;
  const int64_t valid = std::min(kByteCandidates, job.num_candidates - first);
  auto* moved = reinterpret_cast<float*>(out + kByteCandidates * P * padded);
  std::fill_n(scratch, P * stride, 0.0f);
  for (int64_t i = 0; i < kByteCandidates; ++i) {  // the last candidate fills up the panel
    const int64_t row = first + std::min(i, valid - 1);
    for (int p = 0; p < P; ++p)
      load_floats(job.rows.view, row, p, 0, features, scratch + p * stride);
    char* to = out + i / kByteColumn * kByteColumn * P * padded + i % kByteColumn * kByteRun;
    const float length = pack_byte_row<Score>(scratch, features, scale, to);
    moved[i] = length * length_inflation(job) + static_cast<float>(features) * 0x1p-58f;
  }
}

constexpr ByteTier kByteTier = {
    [](const SweepJob& job, int64_t panel, float scale, float* scratch, char* out) {
      with_byte_score(job.score, [&](auto score) {
        pack_byte_panel<decltype(score)>(job, panel, scale, scratch, out);
      });
    },
    [](const ByteJob& job, int64_t panel, Worker& worker) {
      with_byte_score(job.sweep->score, [&](auto score) {
        sweep_byte_panel<decltype(score)>(job, panel, worker);
      });
    }};

}  // namespace
}  // namespace kgfast
