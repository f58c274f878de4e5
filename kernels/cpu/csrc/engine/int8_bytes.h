// Sums of products of bytes: rows of one byte a number, which many queries try before words.
//
// A panel that is packed for a call holds
//   uint8 bytes + 128 [4 columns][K / 4][16 candidates][4 features], and facts as in host/int8.h,
// and a tile of queries
//   int8 bytes [K / 4][16 queries][4 features], int32 [16]: -128 times the sum of a query's bytes.
//
// Cost model: AVX512-VNNI takes half the products of words, and a pair that stays open costs
// kNearCycles and more. AVX2 takes as many instructions for bytes as for words.
#pragma once
#include "engine/int8_vector.h"

namespace kgfast {
namespace {

// Cycles, measured on an AMD EPYC (Zen 4): the saving of a pair per feature, against words, and the
// cost of a pair whose rows float32 reads. Then the most panels of words between two of bytes.
constexpr double kByteSaving = 1.0 / 64.0, kNearCycles = 30.0, kNearFeature = 0.25;
constexpr int64_t kLongestBytePause = 127;

void pack_byte_queries(const SweepJob& job, int8_t* tiles, float* floats, Int8Query* queries) {
  const int64_t padded = int8_padded(job.num_features);
  const auto place = [&](const uint8_t* bytes, int8_t* tile, int i) {
    int32_t sum = 0;
    for (int64_t k = 0; k < padded; ++k) {
      const int whole = bytes[k] - 128;
      tile[(k / 4 * kInt8Queries + i) * 4 + k % 4] = static_cast<int8_t>(whole);
      sum += whole;
    }
    reinterpret_cast<int32_t*>(tile + kInt8Queries * padded)[i] = -128 * sum;
  };
  pack_number_queries<uint8_t>(job, tiles, floats, queries, place);
}

struct ByteEngine {
  static constexpr float unit = 1.0f / 256.0f;
  static constexpr int queries = Bytes::W == 64 ? 8 : 4, columns = Bytes::W == 64 ? 2 : 1;
  static constexpr int width = 1;

  static void multiply(const char* rows, const int8_t* tile, int64_t first, int64_t features,
                       int32_t* out) {
    constexpr int Q = queries, N = columns * kParts;
    const int64_t padded = int8_padded(features), swept = swept_features(features);
    const auto* offsets = reinterpret_cast<const int32_t*>(tile + kInt8Queries * padded) + first;
    I sums[Q][N];
#pragma GCC unroll 8
    for (int a = 0; a < Q; ++a)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[a][n] = Bytes::set1(offsets[a]);
    for (int64_t k = 0; k < swept; k += 4) {
      B c[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        c[n] = Bytes::load(rows + n / kParts * kInt8Column * padded + k * kInt8Column +
                           n % kParts * Bytes::W);
#pragma GCC unroll 8
      for (int a = 0; a < Q; ++a) {
        const B q = Bytes::set_word(tile + k * kInt8Queries + (first + a) * 4);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[a][n] = Bytes::add_products(sums[a][n], c[n], q);
      }
    }
    for (int a = 0; a < Q; ++a)
      for (int n = 0; n < N; ++n)
        Bytes::store_ints(out + n / kParts * kSums + a * kInt8Column + n % kParts * Simd::W,
                          sums[a][n]);
  }
  template <class Take>
  static void sweep(const Int8Job& job, const PanelFacts& panel, const Int8Panel& place,
                    Take take) {
    sweep_columns<ByteEngine>(job, panel, place, place.packed, take);
  }
  template <class Decide, class Take>  // unused: panels of an index have both bytes
  static void sweep_high(const Int8Job&, const PanelFacts&, const Int8Panel&, BytesPause&, Decide,
                         Take) {}
};

// Counts a panel, and sets how many panels of words follow. A pair saves half a product of words.
void count_byte_panel(const Int8Job& job, const Int8Panel& place, char* scratch, const Isa& isa,
                      Worker& worker) {
  const TierPairs before = worker.pairs;
  count_int8_panel<ByteEngine>(job, place, scratch, isa, worker);
  const int64_t swept = worker.pairs.swept - before.swept;
  const int64_t open = worker.pairs.gathered - before.gathered;
  worker.first.swept += swept;
  worker.first.gathered += open;
  const double saving = kByteSaving * static_cast<double>(job.sweep->num_features);
  const double cost = kNearCycles + kNearFeature * static_cast<double>(job.sweep->num_features);
  const double lost = cost * static_cast<double>(open) / (saving * static_cast<double>(swept));
  if (lost > 2.0) worker.bytes_pause.length = kLongestBytePause;
  pause_bytes(lost <= 1.0, worker.bytes_pause, kLongestBytePause);
}

constexpr Int8Rows kByteRows = {pack_byte_queries, pack_number_panel<uint8_t>, count_byte_panel,
                                record_int8_panel<ByteEngine>};

}  // namespace
}  // namespace kgfast
