// Where a call computes.
#pragma once
#include <functional>

#include "host/job.h"

namespace kgfast {

// `interrupted` is asked now and then, by the calling thread only, whether to give up; what is
// called with it says whether it did.
struct Execution {
  const Isa& isa;
  int threads;
  std::function<bool()> interrupted;
};

}  // namespace kgfast
