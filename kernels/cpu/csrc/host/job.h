// Job and worker of one sweep. Plain data: these structs cross translation units that are compiled
// for different instruction sets, so none of them may have inline code.
#pragma once
#include <cstdint>

#include "host/view.h"

namespace kgfast {

// Score.code of kernels/scores.py, or the negative code for an rscf score without a factor. Only
// scores/ tells which functor has a code.
enum class ScoreId : int {};

[[noreturn]] void throw_unknown_score(ScoreId score);

// Terms that a score sums. All but products belong to a distance, so sums only grow; squares end
// with a root. `others` have no derived bound: their sweep decides nothing.
enum class Terms : int { products, magnitudes, squares, moduli, others };

constexpr int64_t kPackBlock = 64;  // features converted at a time

// Facts of a score and of its tiles at run time, taken from the score's functor.
struct ScoreFacts {
  Terms terms;
  int planes, query_planes;  // a candidate in a panel, with its factor; a query
  int lanes, tile_queries;   // candidates of a panel, queries of a tile
  bool is_rscf;              // queries bring a scale of the candidate, and a factor may move them
  bool has_factor;
  bool has_phase;        // the factor turns queries: tiles and panels hold their largest angles
  float factor_origin;   // panels hold the factor less this
  float query_sign;      // tiles hold queries times this
  // Prepares `count` features of a query when they are packed; nullptr if nothing is to be done.
  void (*prepare)(double (*run)[kPackBlock], int64_t count);
};

// All rows of a table, packed before the call as float32 panels, as bytes or for the int8 tier; no
// memory where they are not packed. The numbers are finite and have no factor.
struct Packed {
  int64_t features;
  float* panels;  // [panels][features][planes][lanes]
  float* norms;   // [panels]: upper bounds on the norms of all features
  char* bytes;    // panels of byte_rows.h beside float32 panels, or nullptr
  float scale;    // scale of `bytes`
  char* int8;     // panels of int8.h, or nullptr
};

// Queries and candidates, which Python has checked.
struct Operands {
  ScoreId score;
  int term_ulps;  // see kernels/scores.py
  View query;
  Rows rows;                     // rows of the table, and their factor
  View bias_view;                // one row: a number for each row of the table; or no data
  const int64_t* candidate_ids;  // [M] or nullptr: all rows
  bool has_subset;               // there are ids; an empty subset has no memory
  int64_t num_candidates;        // M
  Packed packed;

  bool is_rounded() const { return rows.view.dtype == DType::f64 || query.dtype == DType::f64; }
};

// Known answers of each query; no memory where there are none.
struct Known {
  const int64_t* indptr;  // [B + 1]
  const int64_t* indices;
};

struct Pair {
  int64_t query;      // row of the query table
  int64_t candidate;  // row of the candidate table
};

// A crop: the first `end` features of every row. One sweep decides the pairs of all crops.
struct Crop {
  int64_t end;
  float rel;  // relative part of the bound on the sweep's error there
};

// A float32 distance v is off by at most rel |v| + base + slope * norm of the candidate.
struct AbsoluteError {
  float base, slope;
};

// A target of a query: a cost that certainly lies below .. above it beats or loses to the target.
struct Threshold {
  int64_t slot;      // crop * rows + row of the query table: where the counts go
  int64_t position;  // of the query in a pass
  float below, above;  // the target's cost, the negated score, rounded down and up
};

// Questions to the intervals of costs that a sweep finds (engine/consumers.h): count the costs on
// each side of thresholds, keep the best k, append the costs within a limit, or write all costs.
enum class Question : int { count, keep, append, record };

enum class Norm : int { none, magnitudes, euclidean };

struct Isa;
struct Worker;

struct SweepJob : Operands {
  ScoreFacts facts;
  double factor_reach, factor_largest;  // largest |b - origin|, rounding included, and largest |b|
  const float* shared;  // [3][features]: w and nearly a of all queries of a pass
  int shared_terms;     // of e^{iy} beyond the first: 1 or 2, or 0 if nothing is shared
  float refined_rel;    // Crop::rel of a shared turn with square roots that round once
  const float* bias;  // [N] or nullptr
  float bias_max;
  const double* bias_exact;         // [N] or nullptr
  int64_t num_features;             // features of the widest crop
  const Crop* crops;                // [C], ascending
  int64_t num_crops;                // C
  const int64_t* query_ids;         // [Q]: distinct rows of the query table, in sweep order
  int64_t num_queries;              // Q
  const float* packed_queries;      // [tiles][features][query planes][tile_queries]
  const float* tile_angles;         // [tiles][angle_stride]: largest |a|, of a score with phases
  int64_t angle_stride;             // a few more than the features, for reads of whole vectors
  Question question;
  const Isa* isa;
  const AbsoluteError* errors;  // [C][Q]
  float* limits;  // [C][Q]: costs past these change nothing, in this crop and in later ones
  void (*resolve)(const SweepJob&, Worker&);  // decides the pairs of a full band, and empties it
  void* owner;                                // for `resolve`

  // Count. Thresholds of query i in crop c: first_threshold[c * Q + i] .. [.. + 1] - 1.
  const Threshold* thresholds;
  const int64_t* first_threshold;  // [C * Q + 1]

  // Keep and append.
  int64_t k;
  int64_t capacity;            // survivors that a worker holds of a query
  const int64_t* known;        // ids of query i, ascending: first_known[i] .. [i + 1] - 1
  const int64_t* first_known;  // [Q + 1]

  float* recorded;  // [2][C][Q][M]: low and high ends

  Norm norm;                        // norm of candidates that the bound asks for
  float norm_inflation;
  float norm_floor;
};

// Tiers: cheaper sweeps with bounds of their own, which decide the pairs they can before float32.
// Ranks are equal whichever tiers serve. docs/explanation/exactness.md derives each bound.
// Bits of a mask, in the order of TIERS in kernels/cpu/tiers.py.
// `forced` makes tiers serve at any cost: for tests.
enum class Tier : unsigned { int8 = 1, bytes = 2, forced = 256 };

// Outcomes of the pairs of a ranking, in the order of PAIRS in kernels/cpu/tiers.py: all pairs,
// those that got canonical scores, those that the int8 tier swept, and those that it left open.
struct PairCounts {
  int64_t total, canonical, swept, left;
};

// A candidate that may be among the best k. Its cost lies in low .. high.
struct Survivor {
  float low, high;
  int64_t candidate;
};

// Pause before a worker tries fewer bytes of a panel first again: a number of panels. The pause
// doubles while the bytes leave much of a panel open.
struct BytesPause {
  int64_t left, length;
};

struct Worker {
  float* room;         // for a panel that is packed
  const float* panel;  // [features][planes][lanes]: `room`, or packed before
  float* panel_angles;  // [angle_stride]: largest |b - 1|, of a score with phases
  float* norms;    // [C]: of the present panel
  double* scratch;  // canonical_scratch doubles
  Pair* band;       // open pairs; of a count, queries are slots
  int64_t band_size, band_capacity;
  void* owner;  // memory of the worker, for `resolve`
  int64_t* greater;   // [C][B], by slot
  int64_t* equal;     // [C][B], by slot
  Survivor* survivors;  // [Q][capacity]
  int64_t* kept;        // [Q]: survivors of each query
  int64_t bad_candidate;  // lowest row seen with a number that is not finite, or INT64_MAX
  int64_t bad_factor;     // lowest row seen whose factor is not finite, or INT64_MAX
  int64_t opened;         // pairs that intervals left open
  PairCounts pairs;
  BytesPause bytes_pause;  // pause of bytes before words
};

// Keeps lanes of `open` as survivors: candidate `first` + lane has a cost in lows .. highs.
void keep_lanes(const SweepJob& job, int64_t position, int64_t first, uint64_t open,
                const float* lows, const float* highs, Worker& worker);

// Lowers the limit of a query by the canonical scores of its k most promising survivors, and drops
// the survivors past the limit.
void settle(const SweepJob& job, int64_t position, Worker& worker);

// Notes a row of the table, or its factor, with a number that is not finite, if no lower row was
// noted.
void check_candidate(const SweepJob& job, int64_t row, int64_t* bad, int64_t* bad_factor);

// Outcome of a sweep: the first rows with a number that is not finite, else INT64_MAX.
struct SweepStatus {
  int64_t bad_query = INT64_MAX;
  int64_t bad_candidate = INT64_MAX;
  int64_t bad_factor = INT64_MAX;
  bool interrupted = false;
};

struct ScoresKernels;    // scores.h
struct BackwardKernels;  // backward.h
struct ProductKernels;   // product.h
struct TrainingKernels;  // training.h
struct ByteTier;         // byte_rows.h
struct Int8Tier;         // int8.h

// One instruction set's kernels. `lanes` candidates make a panel, `tile_queries` queries a tile.
struct Isa {
  const char* name;
  double sqrt_error;  // relative error of the sweep's square root
  ScoreFacts (*facts)(ScoreId);
  // Packs tiles [first, last) of job.query_ids as [tile][feature][plane][query]; angles follow all
  // tiles.
  void (*pack_queries)(const SweepJob&, int64_t first, int64_t last, float* out);
  void (*sweep_panel)(const SweepJob&, int64_t panel, Worker&);
  // Packs all features of a panel into worker.room, and returns the bound on its norms.
  float (*pack_panel)(const SweepJob&, int64_t panel, Worker&);
  // Writes the canonical scores of pairs, of their first `features` features.
  void (*canonical)(const SweepJob&, int64_t features, const Pair*, int64_t count, double* scratch,
                    double* out);
  // Answers for `count` <= 64 costs of a query in a crop, in lows .. highs [64], of candidates from
  // place `first` on.
  void (*take)(const SweepJob&, int64_t crop, int64_t position, int64_t first, int count,
               const float* lows, const float* highs, Worker&);
  const ScoresKernels* scores;
  const BackwardKernels* backward;
  const ProductKernels* product;
  const TrainingKernels* training;
  const ByteTier* bytes;  // nullptr where the instruction set lacks the tier
  const Int8Tier* int8;   // likewise
};

constexpr int64_t kPairBlock = 8;     // pairs that canonical scoring interleaves
constexpr int64_t kTermBlock = 64;    // features that canonical scoring evaluates at a time
constexpr int64_t kCanonicalScratch = (kPairBlock + 2 * kMaxPlanes) * kTermBlock;

// Tables of engine/isa_*.cpp; nullptr where this architecture or compiler lacks the instructions.
// Only machine.cpp reads them, after it asked the processor. An object that is compiled for an
// instruction set exports these constants alone: it may hold no function that other objects call
// by name, and nothing that runs when the extension is loaded.
extern const Isa *const baseline_isa, *const avx2_isa, *const avx512_isa, *const neon_isa;
extern const Int8Tier* const avx512vnni_int8_tier;  // beside AVX-512

namespace {

inline int64_t candidate_of(const SweepJob& job, int64_t position) {
  return job.candidate_ids ? job.candidate_ids[position] : position;
}

inline float limit_of(const SweepJob& job, int64_t row) {
  float limit;
  __atomic_load(job.limits + row, &limit, __ATOMIC_RELAXED);
  return limit;
}

}  // namespace

}  // namespace kgfast
