// The threads, instruction set and tiers of a call.
#pragma once
#include <functional>

#include "host/job.h"
#include "host/tiers.h"

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

}  // namespace kgfast
