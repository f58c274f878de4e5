// The best k dot products of one query, exactly: bytes of the leading features of rotated rows, a
// bound on the rest, then more bytes of the rows that stay open, then float64.
//
// Compiled by benchmarks/energy_order.py, for a machine with AVX512-VNNI. With p = F this is a flat
// scan of bytes.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <vector>

namespace {

constexpr int kLine = 60;  // features beside both facts of a row in a cache line
constexpr int kLanes = 64;

struct Line {
  uint8_t features[kLine];
  uint16_t rounding, rest;  // bfloat16, for all features up to this line and for all behind it
};

double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

float widen(uint16_t bits) { return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits << 16))); }

// Numbers of a query in two bytes: t (128 h + l).
struct Query {
  std::vector<int8_t> h, l;
  std::vector<int64_t> offsets;  // [k]: 128 sum (128 h + l) of the features before k
  float t;
  void pack(const float* q, int count) {
    float most = 1e-30f;
    for (int k = 0; k < count; ++k) most = std::max(most, std::fabs(q[k]));
    t = most / 16000.0f;
    h.assign(count + kLanes, 0);
    l.assign(count + kLanes, 0);
    offsets.assign(1, 0);
    for (int k = 0; k < count; ++k) {
      const int value = static_cast<int>(std::lrint(q[k] / t)), high = (value + 64) >> 7;
      h[k] = static_cast<int8_t>(high);
      l[k] = static_cast<int8_t>(value - high * 128);
      offsets.push_back(offsets.back() + 128 * value);
    }
  }
  // Returns the product with those bytes of features first .. first + 63 that a mask chooses.
  int64_t sum(const uint8_t* bytes, int first, __mmask64 chosen) const {
    const __m512i c = _mm512_maskz_loadu_epi8(chosen, bytes), zero = _mm512_setzero_si512();
    const __m512i high = _mm512_dpbusd_epi32(zero, c, _mm512_loadu_si512(h.data() + first));
    const __m512i low = _mm512_dpbusd_epi32(zero, c, _mm512_loadu_si512(l.data() + first));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
  }
};

struct Best {
  double values[64];
  int64_t ids[64];
  int count = 0, k;
  void add(double value, int64_t id) {
    if (count == k && value <= values[k - 1]) return;
    for (int i = 0; i < count; ++i)
      if (ids[i] == id) return;
    int i = count < k ? count++ : k - 1;
    for (; i > 0 && values[i - 1] < value; --i) values[i] = values[i - 1], ids[i] = ids[i - 1];
    values[i] = value, ids[i] = id;
  }
  double limit() const { return count == k ? values[k - 1] : -INFINITY; }
};

double exact(const float* row, const double* q, int features) {
  __m512d sums[4];
  for (auto& sum : sums) sum = _mm512_setzero_pd();
  for (int k = 0; k < features; k += 32)
    for (int j = 0; j < 4; ++j)
      sums[j] = _mm512_fmadd_pd(_mm512_loadu_pd(q + k + 8 * j),
                                _mm512_cvtps_pd(_mm256_loadu_ps(row + k + 8 * j)), sums[j]);
  return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_add_pd(sums[0], sums[1]),
                                            _mm512_add_pd(sums[2], sums[3])));
}

}  // namespace

struct Table {
  int64_t rows, features, leading;  // F and p
  const uint8_t* panels;            // [rows / 64][p / 4][64][4]: leading features, + 128
  const float *rounding, *rest;     // [rows]: of the leading features, and the norm of the rest
  const Line* lines;                // [rows]: the next 60
  const uint8_t* tails;             // [rows][tail_width]: features behind the lines
  int64_t tail_width;
  const float* all_rounding;  // [rows]
  const float* table;         // [rows][F], as the model has it
};

struct Asked {
  const float* axes;   // [F][F]: axes of the rotation, times the units of bytes; none in a flat scan
  const float* plain;  // [F]: the query in float32, which is rotated; in a flat scan its weights
  float norms[5];        // the rotated query: leading, others; with the line, behind it; all
  float base;            // the most that rounding the query moves a product
  const double* query;   // [F], as the model has it
  double shift;          // the product with the mean of the rows
};

// Computes the products of a query with all axes.
static void rotate(const Asked& q, int features, float* weights) {
  for (int first = 0; first < features; first += 64) {
    __m512 sums[4];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (int i = 0; i < features; ++i)
      for (int j = 0; j < 4; ++j)
        sums[j] = _mm512_fmadd_ps(_mm512_set1_ps(q.plain[i]),
                                  _mm512_loadu_ps(q.axes + i * features + first + 16 * j), sums[j]);
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(weights + first + 16 * j, sums[j]);
  }
}

// Returns seconds; `counts`: rows whose line, tail and floats were read. `room`: [2][rows].
extern "C" double search(const Table* x, const Asked* q, int k, float* room, int64_t* ids,
                         int64_t* counts) {
  const double start = seconds();
  static thread_local Query query;
  static thread_local std::vector<int32_t> open;
  static thread_local std::vector<std::pair<float, int64_t>> seeds;
  const int F = static_cast<int>(x->features), p = static_cast<int>(x->leading);
  static thread_local std::vector<float> weights;
  weights.assign(q->plain, q->plain + F);
  if (q->axes) rotate(*q, F, weights.data());
  query.pack(weights.data(), F);
  const __m512 t = _mm512_set1_ps(query.t), base = _mm512_set1_ps(q->base);
  const __m512 n0 = _mm512_set1_ps(q->norms[0]), n1 = _mm512_set1_ps(q->norms[1]);
  const __m512i offset = _mm512_set1_epi32(static_cast<int>(query.offsets[p]));
  float* uppers = room;
  float* values = room + x->rows;
  seeds.clear();
  for (int64_t first = 0; first < x->rows; first += kLanes) {
    __m512i h[4], l[4];
    for (int j = 0; j < 4; ++j) h[j] = l[j] = _mm512_setzero_si512();
    const uint8_t* bytes = x->panels + first * p;
    for (int k4 = 0; k4 < p; k4 += 4, bytes += 4 * kLanes) {
      const __m512i qh = _mm512_set1_epi32(*reinterpret_cast<const int*>(query.h.data() + k4));
      const __m512i ql = _mm512_set1_epi32(*reinterpret_cast<const int*>(query.l.data() + k4));
      for (int j = 0; j < 4; ++j) {
        const __m512i c = _mm512_loadu_si512(bytes + 64 * j);
        h[j] = _mm512_dpbusd_epi32(h[j], c, qh);
        l[j] = _mm512_dpbusd_epi32(l[j], c, ql);
      }
    }
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int j = 0; j < 4; ++j) {
      const int64_t n = first + 16 * j;
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(h[j], 7), l[j]);
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offset)), t);
      __m512 upper = _mm512_add_ps(_mm512_fmadd_ps(n0, _mm512_loadu_ps(x->rounding + n), value), base);
      if (p < F) {
        upper = _mm512_fmadd_ps(n1, _mm512_loadu_ps(x->rest + n), upper);
        _mm512_storeu_ps(values + n, value);
      }
      _mm512_storeu_ps(uppers + n, upper);
      most = _mm512_max_ps(most, value);
    }
    seeds.push_back({-_mm512_reduce_max_ps(most), first});
  }
  Best best;
  best.k = k;
  const auto low = [&] {
    const float limit = static_cast<float>(best.limit() - q->shift);
    return limit - 1e-5f * std::fabs(limit) - 1e-6f;
  };
  counts[0] = counts[1] = counts[2] = 0;
  const auto decide = [&](int64_t n) {
    ++counts[2];
    best.add(exact(x->table + n * F, q->query, F), n);
  };
  const int64_t many = std::min<int64_t>(2 * k, static_cast<int64_t>(seeds.size()));
  std::nth_element(seeds.begin(), seeds.begin() + many - 1, seeds.end());
  for (int64_t s = 0; s < many; ++s) {
    const float* upper = uppers + seeds[s].second;
    decide(seeds[s].second + (std::max_element(upper, upper + kLanes) - upper));
  }
  open.resize(x->rows + 16);
  int64_t left = 0;
  const __m512i step = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t n = 0; n < x->rows; n += 16) {
    const __mmask16 chosen =
        _mm512_cmp_ps_mask(_mm512_loadu_ps(uppers + n), _mm512_set1_ps(low()), _CMP_GE_OQ);
    _mm512_mask_compressstoreu_epi32(
        open.data() + left, chosen,
        _mm512_add_epi32(step, _mm512_set1_epi32(static_cast<int>(n))));
    left += __builtin_popcount(chosen);
  }
  const int end = std::min(p + kLine, F), width = static_cast<int>(x->tail_width);
  const __mmask64 of_line = (uint64_t{1} << (end - p)) - 1;
  if (p < F) {
    counts[0] = left;
    const float limit = low();
    int64_t kept = 0;
    for (int64_t i = 0; i < left; ++i) {
      const int64_t n = open[i];
      _mm_prefetch(reinterpret_cast<const char*>(x->lines + open[std::min(i + 16, left - 1)]),
                   _MM_HINT_T0);
      const Line& line = x->lines[n];
      const int64_t sum = query.sum(line.features, p, of_line);
      const float value = values[n] +
                          static_cast<float>(sum - query.offsets[end] + query.offsets[p]) * query.t;
      const float upper = value + q->norms[2] * widen(line.rounding) +
                          q->norms[3] * widen(line.rest) + q->base;
      values[n] = value;
      open[kept] = static_cast<int32_t>(n);
      kept += upper >= limit;
    }
    left = counts[1] = kept;
  }
  for (int64_t i = 0; i < left; ++i) {
    const int64_t n = open[i];
    if (p < F) {
      const char* next = reinterpret_cast<const char*>(x->tails + open[std::min(i + 8, left - 1)] * width);
      for (int f = 0; f < width; f += 64) _mm_prefetch(next + f, _MM_HINT_T0);
      int64_t more = 0;
      for (int f = 0; f < F - end; f += 64)
        more += query.sum(x->tails + n * width + f, end + f,
                          F - end - f >= 64 ? ~uint64_t{0} : (uint64_t{1} << (F - end - f)) - 1);
      const float value =
          values[n] + static_cast<float>(more - query.offsets[F] + query.offsets[end]) * query.t;
      if (value + q->norms[4] * x->all_rounding[n] + q->base < low()) continue;
    } else if (uppers[n] < low()) {
      continue;
    }
    decide(n);
  }
  std::copy_n(best.ids, k, ids);
  return seconds() - start;
}
