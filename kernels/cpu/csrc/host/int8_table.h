// A table's rows as the int8 tier has them, made once for many sweeps.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Returns the bytes of the panels of so many rows: 64 rows a panel, one after the other (int8.h).
int64_t int8_table_bytes(int64_t rows, int64_t features);

// Fills the panels, for a product's score whose execution may use the tier.
SweepStatus pack_int8_table(const Execution& execution, const Operands& operands, int64_t features,
                            char* out);

}  // namespace kgfast
