// Distances of bytes: a panel of 64 candidates against a few queries, from memory.
//
// Cost model: of 64 bytes of candidates l1 takes 1 instruction beside a load and a sum, l2 8, and
// rotate 40 for its two planes; 64 bytes come from the third-level cache in 5 cycles, from memory
// in 12.
#pragma once
#include <algorithm>

#include "engine/int8_pack.h"
#include "engine/topk_sweep.h"
#include "host/byte_rows.h"

namespace kgfast {
namespace {

// Sums of one query and a column of candidates: what 8 numbers of each add, and the sums in the
// order of candidates.
template <class Score>
struct ByteSums;

inline __m512i byte_distance(__m512i a, __m512i b) {
  return _mm512_or_si512(_mm512_subs_epu8(a, b), _mm512_subs_epu8(b, a));
}
inline __m512i low_words(__m512i bytes) {
  return _mm512_unpacklo_epi8(bytes, _mm512_setzero_si512());
}
inline __m512i high_words(__m512i bytes) {
  return _mm512_unpackhi_epi8(bytes, _mm512_setzero_si512());
}

template <>
struct ByteSums<L1> {
  static constexpr float rel = 0x1p-19f, moved = 0.0f;
  __m512i sum = _mm512_setzero_si512();
  void add(const __m512i* q, const __m512i* c) {
    sum = _mm512_add_epi64(sum, _mm512_sad_epu8(q[0], c[0]));
  }
  __m256 finish() const { return _mm512_cvtepi64_ps(sum); }
};

// Of pairs of candidates whose four partial sums stand in a quarter of a vector each.
inline __m512i fold_whole(__m512i even, __m512i odd) {
  const __m512i sum =
      _mm512_add_epi32(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
  return _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
}
constexpr __mmask16 kFirstOfQuarters = 0x3333;

template <>
struct ByteSums<L2> {
  static constexpr float rel = 0x1p-19f, moved = 0.0f;
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  void add(const __m512i* q, const __m512i* c) {
    const __m512i x = byte_distance(q[0], c[0]), low = low_words(x), high = high_words(x);
    even = _mm512_add_epi32(even, _mm512_madd_epi16(low, low));
    odd = _mm512_add_epi32(odd, _mm512_madd_epi16(high, high));
  }
  __m256 finish() const {
    const __m512i sum = _mm512_maskz_compress_epi32(kFirstOfQuarters, fold_whole(even, odd));
    return _mm256_sqrt_ps(_mm256_cvtepi32_ps(_mm512_castsi512_si256(sum)));
  }
};

template <>
struct ByteSums<Rotate> {
  static constexpr float rel = 0x1p-12f, moved = 0x1p-19f;  // of a feature, in units of the scale
  V even = Simd::zero(), odd = Simd::zero();
  static V add_roots(V sum, __m512i words) {
    const V squares = _mm512_cvtepi32_ps(_mm512_madd_epi16(words, words));
    return Simd::add_sqrt(sum, Simd::max(squares, Simd::set1(0x1p-40f)));
  }
  void add(const __m512i* q, const __m512i* c) {
    const __m512i x = byte_distance(q[0], c[0]), y = byte_distance(q[1], c[1]);
    const __m512i first = _mm512_unpacklo_epi8(x, y), second = _mm512_unpackhi_epi8(x, y);
    even = add_roots(add_roots(even, low_words(first)), high_words(first));
    odd = add_roots(add_roots(odd, low_words(second)), high_words(second));
  }
  __m256 finish() const {
    const V sum = Simd::add(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
    const V all = Simd::add(sum, _mm512_shuffle_ps(sum, sum, 0x4E));
    return _mm512_castps512_ps256(_mm512_maskz_compress_ps(kFirstOfQuarters, all));
  }
};

// Calls with the functor of a distance.
template <class F>
inline void with_byte_score(ScoreId id, F&& call) {
  with_one_of<L1, L2, Rotate>(id, call);
}

// Distances [64] of Q queries, of which the first is `queries`, in units of the scale; asks for the
// panel that is read next.
template <class Score, int Q>
inline void byte_distances(const char* panel, const uint8_t* queries, int64_t padded,
                           const char* next, float (*out)[kByteCandidates]) {
  constexpr int P = Score::planes;
  for (int64_t column = 0; column < kByteCandidates; column += kByteColumn) {
    const int64_t start = column * P * padded;
    ByteSums<Score> sums[Q];
    for (int64_t k = 0; k < padded; k += kByteRun) {
      __m512i c[P], q[P];
      for (int p = 0; p < P; ++p) {
        const int64_t at = start + (p * padded + k) * kByteColumn;
        if (next) __builtin_prefetch(next + at);
        c[p] = _mm512_loadu_si512(panel + at);
      }
#pragma GCC unroll 4
      for (int a = 0; a < Q; ++a) {
        for (int p = 0; p < P; ++p) {
          int64_t run;
          __builtin_memcpy(&run, queries + (a * P + p) * padded + k, sizeof run);
          q[p] = _mm512_set1_epi64(run);
        }
        sums[a].add(q, c);
      }
    }
    for (int a = 0; a < Q; ++a) _mm256_storeu_ps(out[a] + column, sums[a].finish());
  }
}

// The same of all queries of a job.
template <class Score>
inline void all_byte_distances(const ByteJob& job, int64_t panel,
                               float (*out)[kByteCandidates]) {
  const SweepJob& sweep = *job.sweep;
  const int64_t padded = byte_padded(sweep.num_features), queries = sweep.num_queries;
  const int64_t bytes = byte_panel_bytes(sweep.num_features, Score::planes);
  const char* packed = sweep.packed.bytes + panel * bytes;
  const bool is_last = (panel + 1) * kByteCandidates >= sweep.num_candidates;
  int64_t i = 0;
  for (; i + 4 <= queries; i += 4)
    byte_distances<Score, 4>(packed, job.queries + i * Score::planes * padded, padded,
                             i || is_last ? nullptr : packed + bytes, out + i);
  for (; i < queries; ++i)
    byte_distances<Score, 1>(packed, job.queries + i * Score::planes * padded, padded,
                             i || is_last ? nullptr : packed + bytes, out + i);
}

// What is left of the candidates of a panel.
inline const float* byte_moved(const SweepJob& job, int64_t panel) {
  const int64_t bytes = byte_panel_bytes(job.num_features, job.facts.planes);
  return reinterpret_cast<const float*>(job.packed.bytes + (panel + 1) * bytes) - kByteCandidates;
}

// The lanes that may be among the best k of a query. With tau = limit + bias, v (1 - rel) past
// tau + |r| of both loses; 2^-20 of each is for its roundings.
template <class Score>
inline uint64_t open_byte_lanes(const ByteJob& job, const TopkJob& topk, const PanelFacts& facts,
                                const float* moved, int64_t position, const float* distances) {
  const V limit = Simd::set1(Keeping<Score>::limit_of(topk, position));
  const V own = Simd::set1(job.moved[position] + job.base[position]);
  const V scale = Simd::set1(topk.packed.scale * (1.0f - ByteSums<Score>::rel));
  const V up = Simd::set1(1.0f + 0x1p-20f), huge = Simd::set1(FLT_MAX);
  uint64_t lost = 0;
  for (int b = 0; b < kByteCandidates; b += Simd::W) {
    const V tau = Simd::add(limit, Simd::load(facts.bias + b));
    const V near = Simd::fma(Simd::abs(tau), Simd::set1(0x1p-20f), tau);
    const V reach = Simd::fma(Simd::add(own, Simd::load(moved + b)), up, near);
    const V distance = Simd::mul(Simd::load(distances + b), scale);
    const uint64_t loses = Simd::less(reach, distance) & Simd::less(distance, huge);
    lost |= loses << b;
  }
  const uint64_t valid = facts.valid == 64 ? ~uint64_t{0} : (uint64_t{1} << facts.valid) - 1;
  return valid & ~lost;
}

constexpr int kByteOpen = 8;  // open candidates of a query that cost less than a panel of float32

// Candidates that stay open get canonical scores, where they are few; else float32 sweeps the
// panel, and others after it.
template <class Score>
void keep_byte_panel(const ByteJob& job, const TopkJob& topk, int64_t panel, TopkWorker& worker) {
  const int64_t queries = topk.num_queries;
  if (worker.bytes_pause.left) {
    --worker.bytes_pause.left;
    return topk.isa->topk->sweep_panel(topk, panel, worker);
  }
  const FloatMode mode(FloatMode::kIeee);
  const PanelFacts facts = panel_facts(topk, kByteCandidates, panel);
  alignas(64) float distances[kByteQueries][kByteCandidates];
  uint64_t open[kByteQueries];
  int64_t count = 0;
  all_byte_distances<Score>(job, panel, distances);
  for (int64_t i = 0; i < queries; ++i) {
    open[i] = open_byte_lanes<Score>(job, topk, facts, byte_moved(topk, panel), i, distances[i]);
    count += __builtin_popcountll(open[i]);
  }
  const bool was_worth_it = count <= kByteOpen * queries;
  pause_bytes(was_worth_it, worker.bytes_pause);
  if (!was_worth_it) return topk.isa->topk->sweep_panel(topk, panel, worker);
  for (int64_t i = 0; count && i < queries; ++i)
    if (open[i]) keep_scored(topk, i, facts.first, open[i], worker);
}

template <class Score>
void record_byte_panel(const ByteJob& job, int64_t panel, float* values, float* bounds) {
  alignas(64) float distances[kByteQueries][kByteCandidates];
  const float* moved = byte_moved(*job.sweep, panel);
  all_byte_distances<Score>(job, panel, distances);
  for (int64_t i = 0; i < job.sweep->num_queries; ++i)
    for (int64_t lane = 0; lane < kByteCandidates; ++lane) {
      const float value = distances[i][lane] * job.sweep->packed.scale;
      values[i * kByteCandidates + lane] = value;
      bounds[i * kByteCandidates + lane] =
          (job.moved[i] + moved[lane] + ByteSums<Score>::rel * value) * (1.0f + 0x1p-20f);
    }
}

// Upper bounds of the lengths of what is left are their sums times this.
inline float length_inflation(const SweepJob& job) {
  return 1.0f + 0x1p-13f + static_cast<float>(job.num_features * job.facts.planes + 16) * 0x1p-22f;
}

template <class Score>
void pack_byte_panel(const SweepJob& job, int64_t panel, float scale, float* scratch, char* out) {
  constexpr int P = Score::planes;
  const FloatMode mode(FloatMode::kIeee);
  const int64_t features = job.num_features, padded = byte_padded(features);
  const int64_t first = panel * kByteCandidates;
  const int64_t valid = std::min(kByteCandidates, job.num_candidates - first);
  auto* moved = reinterpret_cast<float*>(out + kByteCandidates * P * padded);
  const V inverse = Simd::set1(1.0f / scale), unit = Simd::set1(scale);
  for (int64_t i = 0; i < kByteCandidates; ++i) {  // those past the last candidate repeat it
    const int64_t row = first + std::min(i, valid - 1);
    for (int p = 0; p < P; ++p)
      load_floats(job.rows.view, row, p, 0, features, scratch + p * padded);
    char* to = out + i / kByteColumn * kByteColumn * P * padded + i % kByteColumn * kByteRun;
    V sum = Simd::zero();
    for (int64_t k = 0; k < padded; k += Simd::W) {
      V rest[P], zeros[P];
      for (int p = 0; p < P; ++p) {
        const __mmask16 mask = first_lanes(std::max<int64_t>(features - k, 0));
        const V x = _mm512_maskz_loadu_ps(mask, scratch + p * padded + k);
        const V most = Simd::set1(kByteMost), t = Simd::mul(x, inverse);
        const __m512i whole = _mm512_cvtps_epi32(
            _mm512_max_ps(_mm512_sub_ps(Simd::zero(), most), _mm512_min_ps(t, most)));
        alignas(16) char bytes[16];
        _mm_store_si128(reinterpret_cast<__m128i*>(bytes),
                        _mm_xor_si128(_mm512_cvtsepi32_epi8(whole), _mm_set1_epi8(-128)));
        for (int64_t part = 0; part < 16 && k + part < padded; part += kByteRun)
          std::memcpy(to + (p * padded + k + part) * kByteColumn, bytes + part, kByteRun);
        rest[p] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(whole), unit, x);
        zeros[p] = Simd::zero();
      }
      sum = Score::add(sum, rest, zeros);
    }
    const float total = _mm512_reduce_add_ps(sum);
    const float length = Score::terms == Terms::squares ? std::sqrt(total) : total;
    moved[i] = length * length_inflation(job) + static_cast<float>(features) * 0x1p-58f;
  }
}

}  // namespace
}  // namespace kgfast
