// Matrix products in registers: the gradients of `dot` are sums of rows by coefficients.
//
// Cost model (AVX-512): 6 rows x 4 vectors of features are 24 accumulators; per row that is summed
// 4 loads and 6 broadcasts for 24 fused multiply-adds, 12 cycles on two ports. A block of
// coefficients is copied once, so that its lines are read whole, and strips of the other side once
// for all blocks, where they fit kPackedBytes.
//
// Order: kDepth terms in registers, then the block's sums; ranges of terms in their order.
#pragma once
#include <algorithm>
#include <cstring>

#include "host/fpmode.h"
#include "host/product.h"
#include "host/store.h"
#include "scores/common.h"

namespace kgfast {
namespace {

constexpr int kTileRows = 6, kStripVectors = Simd::W == 8 ? 2 : 4;  // tiles that fit the registers
constexpr int kStrip = kStripVectors * Simd::W;
constexpr int64_t kDepth = 128, kBlockRows = 192;
constexpr int64_t kCoefficients = kDepth * kBlockRows, kOthers = kDepth * kStrip;

// Coefficients of a block: row i and term j stand at i * row + j * term.
struct Coefficients {
  const float* data;
  int64_t row, term;
};

// A sum of `depth` rows: its terms, the earlier sums that it continues, if any, and its place.
struct ProductSums {
  const float* other;  // [depth][kStrip]
  int64_t depth;
  const float* known;  // nullptr: nothing
  float* sums;
  int64_t step;  // from row to row

  ProductSums at(int64_t row) const {
    return {other, depth, known ? known + row * step : nullptr, sums + row * step, step};
  }
};

// Sets sums[i] = known[i] + sum_j g(i, j) other[j], for M rows and N vectors of the other side.
template <int M, int N>
inline void product_tile(const Coefficients& g, const ProductSums& into) {
  const float* other = into.other;
  const int64_t depth = into.depth, step = into.step;
  V total[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      total[i][n] = Simd::zero();
  for (int64_t j = 0; j < depth; ++j) {
    V c[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) c[n] = Simd::load(other + j * kStrip + n * Simd::W);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const V factor = Simd::set1(g.data[i * g.row + j * g.term]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) total[i][n] = Simd::fma(factor, c[n], total[i][n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const int64_t at = i * step + n * Simd::W;
      if (into.known) total[i][n] = Simd::add(Simd::load(into.known + at), total[i][n]);
      Simd::store(into.sums + at, total[i][n]);
    }
}

// Sums all rows of a block with one strip of N vectors.
template <int N>
void product_rows(Coefficients g, int64_t rows, const ProductSums& into) {
  static_assert(kTileRows == 6, "the last tile has up to 5 rows");
  constexpr decltype(&product_tile<1, N>) last[] = {product_tile<1, N>, product_tile<2, N>,
                                                    product_tile<3, N>, product_tile<4, N>,
                                                    product_tile<5, N>};
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows, g.data += kTileRows * g.row)
    product_tile<kTileRows, N>(g, into.at(row));
  if (row < rows) last[rows - row - 1](g, into.at(row));
}

inline void product_strip(const Coefficients& g, int64_t rows, int64_t vectors,
                          const ProductSums& into) {
  constexpr decltype(&product_rows<1>) strips[] = {
      product_rows<1>, product_rows<2>, product_rows<kStripVectors - 1>,
      product_rows<kStripVectors>};
  strips[vectors - 1](g, rows, into);
}

inline int64_t vectors_of(int64_t features) { return (features + Simd::W - 1) / Simd::W; }

inline int64_t block_width(const ProductJob& job) {
  int64_t vectors = 0;
  for (int64_t n = 0; n < job.num_strips; ++n) vectors += vectors_of(job.strips[n].count);
  return vectors * Simd::W;
}

inline int64_t block_floats(const ProductJob& job) {
  return job.block * block_width(job);
}

inline ProductShape product_shape() {
  return {kStrip, Simd::W, kBlockRows, kDepth, kCoefficients + kOthers, kOthers};
}

// Rows [row, row + rows) of the result and terms [term, term + depth) of their sums.
struct ProductTile {
  int64_t row, rows, term, depth;
};

// Returns the coefficients of a feature: sums over the crops that hold the feature. Coefficients
// whose lines run along the terms are used in place; others are copied in the order of their
// memory.
inline Coefficients product_coefficients(const ScoreGradient& grad, int64_t feature,
                                         const ProductTile& tile, float* out) {
  const float* from = grad.data + tile.row * grad.row_stride + tile.term * grad.column_stride;
  if (grad.num_crops == 1 && grad.column_stride == 1) return {from, grad.row_stride, 1};
  const bool along_rows = grad.row_stride == 1;
  const int64_t lines = along_rows ? tile.depth : tile.rows;
  const int64_t count = along_rows ? tile.rows : tile.depth;
  const int64_t line = along_rows ? grad.column_stride : grad.row_stride;
  const int64_t step = along_rows ? 1 : grad.column_stride;
  if (grad.num_crops > 1) std::memset(out, 0, sizeof(float) * lines * count);
  for (int64_t crop = 0; crop < grad.num_crops; ++crop, from += grad.crop_stride) {
    if (grad.widths[crop] <= feature) continue;
    for (int64_t n = 0; n < lines; ++n) {
      const float* values = from + n * line;
      float* sums = out + n * count;
      if (grad.num_crops > 1)
        for (int64_t i = 0; i < count; ++i) sums[i] += values[i * step];
      else
        if (step == 1)
          std::memcpy(sums, values, sizeof(float) * count);
        else
          for (int64_t i = 0; i < count; ++i) sums[i] = values[i * step];
    }
  }
  return along_rows ? Coefficients{out, 1, count} : Coefficients{out, count, 1};
}

inline void load_strip(const View& other, const FeatureBlock& strip, const ProductTile& tile,
                       float* out) {
  const int64_t whole = strip.count / Simd::W * Simd::W, width = vectors_of(strip.count) * Simd::W;
  const bool direct = other.is_plain();
  for (int64_t j = 0; j < tile.depth; ++j, out += kStrip) {
    if (direct) {
      const float* from = run_at<float>(other, tile.term + j, 0, strip.feature);
      for (int64_t i = 0; i < whole; i += Simd::W) Simd::store(out + i, Simd::load(from + i));
      for (int64_t i = whole; i < strip.count; ++i) out[i] = from[i];
    } else {
      load_floats(other, tile.term + j, 0, strip.feature, strip.count, out);
    }
    for (int64_t i = strip.count; i < width; ++i) out[i] = 0.0f;
  }
}

// Packs a strip of kDepth rows of the other side, for all blocks; `index` counts strips, then rows.
inline void pack_others(const ProductJob& job, int64_t index, float* out) {
  const FloatMode mode(FloatMode::kFlush);
  ProductTile tile{};
  tile.term = index / job.num_strips * kDepth;
  tile.depth = std::min(kDepth, job.other.count - tile.term);
  load_strip(job.other, job.strips[index % job.num_strips], tile, out);
}

// Calls each(strip, place of its sums in a row, true if the strip begins a crop).
template <class Each>
inline void for_each_strip(const ProductJob& job, Each each) {
  int64_t at = 0;
  for (int64_t n = 0; n < job.num_strips; ++n) {
    each(job.strips[n], at, n == 0 || job.strips[n].begins_crop);
    at += vectors_of(job.strips[n].count) * Simd::W;
  }
}

inline void add_product_terms(const ProductJob& job, const ProductTile& tile, float* scratch,
                              const ProductSums& into) {
  const int64_t first = tile.term / kDepth * job.num_strips;
  float* loaded = scratch + kCoefficients;
  Coefficients g{};
  for_each_strip(job, [&](const FeatureBlock& strip, int64_t at, bool begins_crop) {
    if (begins_crop) g = product_coefficients(job.grad, strip.feature, tile, scratch);
    const float* others = loaded;
    if (job.packed)
      others = job.packed + (first + (&strip - job.strips)) * kOthers;
    else
      load_strip(job.other, strip, tile, loaded);
    const float* known = into.known ? into.known + at : nullptr;
    product_strip(g, tile.rows, vectors_of(strip.count),
                  {others, tile.depth, known, into.sums + at, into.step});
  });
}

inline void store_product(const ProductJob& job, const ProductTile& tile, const float* sums) {
  const int64_t step = block_width(job);
  for_each_strip(job, [&](const FeatureBlock& strip, int64_t at, bool) {
    for (int64_t i = 0; i < tile.rows; ++i)
      store_floats(job.out, tile.row + i, 0, strip.feature, strip.count, sums + i * step + at);
  });
}

inline ProductTile block_of(const ProductJob& job, int64_t block) {
  const int64_t row = block * job.block;
  return {row, std::min(job.block, job.out.count - row), 0, 0};
}

inline float* partial_sums(const ProductJob& job, int64_t block, int64_t range) {
  return job.partial_sums + (range * job.num_blocks + block) * block_floats(job);
}

inline void sum_range(const ProductJob& job, int64_t block, int64_t range, float* scratch) {
  const FloatMode mode(FloatMode::kFlush);
  ProductTile tile = block_of(job, block);
  const bool partial = job.num_ranges > 1;
  float* sums = partial ? partial_sums(job, block, range) : scratch + product_shape().scratch;
  const int64_t step = block_width(job);
  const float* known = nullptr;
  if (job.adds)
    for_each_strip(job, [&](const FeatureBlock& strip, int64_t at, bool) {
      for (int64_t i = 0; i < tile.rows; ++i)
        load_floats(job.out, tile.row + i, 0, strip.feature, strip.count, sums + i * step + at);
      known = sums;
    });
  const int64_t end = std::min((range + 1) * job.range_size, job.other.count);
  if (!known && range * job.range_size >= end)
    std::memset(sums, 0, sizeof(float) * block_floats(job));
  for (tile.term = range * job.range_size; tile.term < end; tile.term += kDepth, known = sums) {
    tile.depth = std::min(kDepth, end - tile.term);
    add_product_terms(job, tile, scratch, {nullptr, 0, known, sums, step});
  }
  if (!partial) store_product(job, tile, sums);
}

inline void add_product_ranges(const ProductJob& job, int64_t block) {
  const FloatMode mode(FloatMode::kFlush);
  float* first = partial_sums(job, block, 0);
  for (int64_t range = 1; range < job.num_ranges; ++range) {
    const float* terms = partial_sums(job, block, range);
    for (int64_t i = 0; i < block_floats(job); i += Simd::W)
      Simd::store(first + i, Simd::add(Simd::load(first + i), Simd::load(terms + i)));
  }
  store_product(job, block_of(job, block), first);
}

}  // namespace
}  // namespace kgfast
