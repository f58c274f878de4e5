// Instruction sets and tiers of this machine.
#pragma once
#include <vector>

#include "host/job.h"
#include "host/tiers.h"

namespace kgfast {

// Returns the best instruction set of this machine, or the named one; nullptr if there is none.
const Isa* find_isa(const char* name);

// Instructions that a tier needs beside an instruction set, whether this machine has them, and
// whether this build has the tier's kernels.
struct TierEngine {
  Tier tier;
  const char *isa, *needs;
  bool has, is_built;
};
const std::vector<TierEngine>& tier_engines();

// Returns the tiers that this build and machine have beside an instruction set: a mask.
unsigned find_tiers(const Isa& isa);

}  // namespace kgfast
