// Job and worker of the half-precision sweep. Plain data, as in job.h.
#pragma once
#include <cstdint>

#include "host/gather.h"

namespace kgfast {

constexpr int kHalfLanes = kGatherLanes;  // candidates of a panel
constexpr int kHalfQueries = 4;  // queries of a tile, as in the float32 sweep of these scores
constexpr int kHalfChain = 4;    // terms added up one by one; features are padded to whole chains
constexpr int kHalfTree = 4;     // chains whose sums are added as a tree, and then to float32
constexpr int64_t kHalfBlock = 32;  // features between two counts of the open pairs
constexpr int64_t kHalfAhead = 64;  // features whose cost may be spent on gathering instead

constexpr int64_t padded_to_chains(int64_t features) {
  return (features + kHalfChain - 1) / kHalfChain * kHalfChain;
}

// Candidates times a power of two, rounded to float16.
struct HalfPanels {
  uint16_t* values;  // [panel][padded features][plane][kHalfLanes]
  // [panel][kHalfLanes]: how far rounding may have moved a candidate, in the units of a distance;
  // infinite where values did not fit and are zeros.
  float* errors;
};

// Costs of one tile of queries on the panels of a sample.
struct TileCost {
  int64_t pairs;        // swept pairs, with lanes and queries that pad a tile
  int64_t terms;        // terms swept in half precision
  int64_t gathered;     // open pairs
  int64_t float_terms;  // terms that the float32 sweep would have swept
};

struct HalfJob {
  const SweepJob* sweep;
  float scale, unscale;
  float rel;                       // relative part of the bound
  const uint32_t* packed_queries;  // [tiles][padded features][plane][kHalfQueries], each twice
  const float* query_errors;       // [Q]: the query's share of the absolute bound
  const float* reaches;            // [Q]: past reach + 1.25 (1 + rel) error no target is beaten
  const uint8_t* serves;           // [tiles]: whether this sweep serves the tile
  int64_t features;                // padded
};

struct HalfWorker : Gathering {
  HalfPanels room;     // for one panel
  const uint16_t* values;  // the present panel, as in HalfPanels
  const float* errors;
  float* slack;        // [kHalfLanes]: the candidate's share of the absolute bound
  TileCost* costs;     // [tiles], or nullptr
};

// Costs in units of one term of the float32 sweep, measured on a Xeon of the Granite Rapids kind.
struct HalfCosts {
  double term, pair;                    // costs of this sweep
  double gathered_term, gathered_pair;  // costs of pairs that the sweep leaves open
};

// Facts of a score for this sweep; a limit of 0 means that the sweep does not serve the score.
struct HalfFacts {
  float limit;  // the largest operand, scaled
  HalfCosts costs;
};

struct HalfTier {
  HalfFacts (*facts)(ScoreId);
  // Packs one panel, and notes the first bad rows in the worker.
  void (*pack_panel)(const SweepJob&, float scale, int64_t panel, const HalfPanels& out, Worker&);
  // Packs the queries of job.query_ids, and writes how far rounding may have moved each, [Q].
  void (*pack_queries)(const SweepJob&, float scale, uint32_t* out, float* errors);
  // Decides the pairs of the worker's panel with the tiles that this sweep serves.
  void (*sweep_panel)(const HalfJob&, int64_t panel, HalfWorker&);
  // Writes the sweep's distances of one panel, [Q][kHalfLanes]: for tests of the bound.
  void (*sweep_values)(const HalfJob&, HalfWorker&, float* out);
};

}  // namespace kgfast
