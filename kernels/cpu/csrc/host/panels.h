// Panels that serve many calls: packed once, read in place of the table.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Packs `features` features of all rows into `panels` [panels][features][planes][lanes], and writes
// a bound on the norms of each panel; a score with a factor has none.
SweepStatus pack_panels(const Execution& execution, const Operands& operands, int64_t features,
                        float* panels, float* norms);

}  // namespace kgfast
