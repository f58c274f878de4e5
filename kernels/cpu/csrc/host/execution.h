// The threads, instruction set and tiers of a call; instruction sets and tiers of this machine.
#pragma once
#include <functional>

#include "host/job.h"

namespace kgfast {

// `interrupted` is called now and then, by the calling thread only; true ends the work. Functions
// that call `interrupted` report whether the work ended early.
struct Execution {
  const Isa& isa;
  int threads;
  unsigned tiers;  // mask of tiers that may serve, out of find_tiers()
  std::function<bool()> interrupted;
  bool may_use(Tier tier) const { return tiers & static_cast<unsigned>(tier); }
};

// Returns the best instruction set of this machine, or the named one; nullptr if there is none.
const Isa* find_isa(const char* name);

// Returns the tiers that this build and machine have beside an instruction set: a mask.
unsigned find_tiers(const Isa& isa);

}  // namespace kgfast
