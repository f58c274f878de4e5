// Panels that serve many calls: packed once for an index, read in place of the table.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Packs `features` features of all rows into `panels` [panels][features][planes][lanes], and writes
// a bound on the norms of each panel; a score with a factor has none.
SweepStatus pack_panels(const Execution& execution, const Operands& operands, int64_t features,
                        float* panels, float* norms);

// Returns the bytes of panels of int8.h, and fills these for a product's score whose execution may
// use the tier.
int64_t int8_table_bytes(int64_t rows, int64_t features);
SweepStatus pack_int8_table(const Execution& execution, const Operands& operands, int64_t features,
                            char* out);

// Returns the bytes of panels of byte_rows.h, and fills these from finite rows, for a distance
// whose execution may use bytes.
int64_t byte_table_bytes(int64_t rows, int64_t features, int planes);
SweepStatus pack_byte_table(const Execution& execution, const Operands& operands, int64_t features,
                            float scale, char* out);

}  // namespace kgfast
