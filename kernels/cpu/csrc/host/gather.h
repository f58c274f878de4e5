// Data by which a worker of a tier decides pairs by float32, row by row. Plain data, as in job.h.
#pragma once
#include "host/job.h"

namespace kgfast {

constexpr int kGatherLanes = 128;  // candidates of a tier's panel, two of the float32 sweep's

struct Gathering {
  float* rows;   // [kGatherLanes][planes][features]: in float32 where the table has other types
  bool* has_row;  // [kGatherLanes]
  float* query;  // [planes][features], likewise
  TierPairs pairs;
  Worker* wide;  // worker of the float32 sweep: counts and band
  void (*rescore_band)(const SweepJob&, Worker&);
};

}  // namespace kgfast
