// Instruction sets and tiers of this machine.
#pragma once
#include "host/job.h"
#include "host/tiers.h"

namespace kgfast {

// Returns the best instruction set of this machine, or the named one; nullptr if there is none.
const Isa* find_isa(const char* name);

// Returns the tiers that this build and machine have beside an instruction set: a mask.
unsigned find_tiers(const Isa& isa);

}  // namespace kgfast
