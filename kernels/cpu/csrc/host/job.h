// What one sweep is given and what a worker of it keeps. Plain data: it crosses translation units
// that are compiled for different instruction sets, so nothing in it may have inline code.
#pragma once
#include <cstdint>

#include "host/view.h"

namespace kgfast {

// Of the rscf scores, those with a factor, then those without one.
enum class ScoreId : int {
  dot = 0, l1 = 1, l2 = 2, rotate = 3,
  rscf_rotate = 4, rscf_l1 = 5, rscf_l2 = 6,
  scaled_rotate = 7, scaled_l1 = 8, scaled_l2 = 9,
};

struct Pair {
  int64_t query;      // row of the query table
  int64_t candidate;  // row of the candidate table
};

// The first `end` features of every row are a model of their own: the sweep decides it on its way.
struct Crop {
  int64_t end;
  float rel;  // of the bound on the sweep's error there
};

// A target of a query, and how the query's pairs are decided for it; docs/exactness.md derives it.
// With tau = bias - target score, err = rel * |tau| + (base + slope * panel norm): below tau - err
// the candidate beats the target, above tau + err it does not, in between the canonical score
// decides.
struct Threshold {
  int64_t slot;        // crop * rows + row of the query table: where the counts go
  float minus_target;  // - canonical score of the target, rounded
  float base;
  float slope;
};

// What no total of a crop, or of a later one, wants to reach: a total past
// reach + slope * panel norm of the widest crop cannot change a count any more.
struct Reach {
  float reach;
  float slope;
};

struct SweepJob {
  ScoreId score;
  int planes, query_planes;  // of a candidate in a panel, its factor included, and of a query
  View table, query;
  View factor;  // of one plane; no data where there is none
  double factor_reach, factor_largest;  // largest |b - origin|, rounding included, and largest |b|
  const float* bias;  // [N] or nullptr
  float bias_max;
  const double* bias_exact;         // [N] or nullptr
  const int64_t* candidate_ids;     // [M] or nullptr: all rows
  int64_t num_candidates;           // M
  int64_t num_features;             // of the widest crop
  const Crop* crops;                // [C], ascending
  int64_t num_crops;                // C
  int64_t features_per_block;       // features that a panel holds at once
  const int64_t* query_ids;         // [Q]: distinct rows of the query table, in sweep order
  int64_t num_queries;              // Q
  const float* packed_queries;      // [tiles][features][query planes][tile_queries]
  const float* tile_angles;         // [tiles][angle_stride]: largest |a|, if the score has angles
  int64_t angle_stride;             // a few more than the features, as those are read by vectors
  const Threshold* thresholds;      // of query i in crop c: first_threshold[c * Q + i] .. [.. + 1]
  const int64_t* first_threshold;   // [C * Q + 1]
  const Reach* reaches;             // [C][Q]
  const int64_t* targets;           // [B], by query row
  const double* target_scores;      // [C][B], by slot
  int64_t num_rows;                 // B
  int norm;  // 0: none, 1: sum of magnitudes, 2: Euclidean
  float norm_inflation;
  float norm_floor;
};

struct Worker {
  float* panel;    // [features_per_block][planes][lanes]
  float* panel_angles;  // [angle_stride]: largest |b - 1|, if the score has angles
  float* totals;   // [tiles][tile_queries][lanes], used when features come in several blocks
  uint8_t* alive;  // [tiles], likewise
  float* norms;    // [C]: of the present panel
  Pair* band;      // its queries are slots
  int64_t band_size, band_capacity;
  double* scratch;   // canonical_scratch doubles
  int64_t* greater;  // [C][B], by slot
  int64_t* equal;    // [C][B], by slot
  int64_t bad_candidate;  // lowest row seen with a number that is not finite, or INT64_MAX
  int64_t bad_factor;     // likewise
};

// How a sweep ended: the first rows seen with a number that is not finite, else INT64_MAX.
struct SweepStatus {
  int64_t bad_query = INT64_MAX;
  int64_t bad_candidate = INT64_MAX;
  int64_t bad_factor = INT64_MAX;
  bool interrupted = false;
};

struct PairwiseKernels;  // pairwise.h
struct IndexedKernels;   // indexed.h
struct LossKernels;      // losses.h
struct TopkKernels;      // topk.h

// One instruction set's kernels. `lanes` candidates make a panel, `tile_queries` queries a tile.
struct Isa {
  const char* name;
  double sqrt_error;  // relative error of the sweep's square root
  int (*lanes)(ScoreId);
  int (*tile_queries)(ScoreId);
  // Packs the queries of job.query_ids as [tile][feature][plane][query]; their angles follow.
  void (*pack_queries)(const SweepJob&, float* out);
  void (*sweep_panel)(const SweepJob&, int64_t panel, Worker&);
  // Decides worker.band by canonical scores, and empties it.
  void (*decide_band)(const SweepJob&, Worker&);
  // Canonical scores of pairs, of their first `features` features, in `out`.
  void (*canonical)(const SweepJob&, int64_t features, const Pair*, int64_t count, double* scratch,
                    double* out);
  // The sweep's own values of one panel, [C][Q][lanes]: for tests of the bound.
  void (*sweep_values)(const SweepJob&, int64_t panel, Worker&, float* out);
  // Runs the bare register loop over one resident panel and tile: the roof of the sweep.
  float (*bare_loop)(ScoreId, const float* panel, const float* tile, int64_t features,
                     int64_t repeats);
  const PairwiseKernels* pairwise;
  const IndexedKernels* indexed;
  const LossKernels* losses;
  const TopkKernels* topk;
};

constexpr int64_t kPairBlock = 8;     // pairs that canonical scoring interleaves
constexpr int64_t kTermBlock = 64;    // features that it evaluates at a time
constexpr int64_t kCanonicalScratch = (kPairBlock + 2 * kMaxPlanes) * kTermBlock;

const Isa* baseline_isa();  // nullptr where this build lacks it
const Isa* avx2_isa();      // nullptr where this architecture lacks it
const Isa* avx512_isa();    // likewise

}  // namespace kgfast
