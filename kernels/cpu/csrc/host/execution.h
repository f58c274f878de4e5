// The threads, instruction set and tiers of a call.
#pragma once
#include <functional>

#include "host/job.h"
#include "host/tiers.h"

namespace kgfast {

// `interrupted` is asked now and then, by the calling thread only, whether to give up; what is
// called with it says whether it did.
struct Execution {
  const Isa& isa;
  int threads;
  unsigned tiers;  // mask of tiers that may serve, out of find_tiers()
  std::function<bool()> interrupted;
  bool may_use(Tier tier) const { return tiers & static_cast<unsigned>(tier); }
};

}  // namespace kgfast
