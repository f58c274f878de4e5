// Rows and the factor beside them. Plain data, like job.h.
#pragma once
#include "host/view.h"

namespace kgfast {

// `planes` planes of `view`, and then that of `factor`. Gradients: no data where it is not wanted.
struct Rows {
  View view, factor;
  int planes = 0;
};

}  // namespace kgfast
