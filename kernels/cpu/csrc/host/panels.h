// Panels that serve many calls: packed once for an index, read in place of the table.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Packs all rows into the panels that have memory: float32 with the bounds on the norms, for a
// score without a factor, and bytes beside them if the rows are finite; or those of the int8 tier.
SweepStatus pack_table(const Execution& execution, const Operands& operands, const Packed& panels);

}  // namespace kgfast
