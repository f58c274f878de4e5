// Memory of a tier's worker, for pairs that float32 decides row by row. Plain data, as in job.h.
#pragma once
#include "host/job.h"

namespace kgfast {

constexpr int kGatherLanes = 128;  // candidates of a tier's panel: whole float32 panels

struct Gathering {
  float* rows;   // [kGatherLanes][planes][features]: float32 copies of other types
  bool* has_row;  // [kGatherLanes]
  float* query;  // [planes][features]: a float32 copy of another type
  TierPairs pairs;
  Worker* wide;  // worker of the float32 sweep: counts and band
  void (*rescore_band)(const SweepJob&, Worker&);
};

}  // namespace kgfast
