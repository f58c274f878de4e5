// A table's rows as bytes, made once for many calls.
#pragma once
#include "host/execution.h"

namespace kgfast {

// Returns the bytes of the panels of so many rows.
int64_t byte_table_bytes(int64_t rows, int64_t features, int planes);

// Fills the panels from finite rows, for a distance whose execution may use bytes.
SweepStatus pack_byte_table(const Execution& execution, const Operands& operands, int64_t features,
                            float scale, char* out);

// Writes distances of up to kByteQueries queries by packed bytes, and the bounds on their errors,
// [B, N] each: for tests.
void byte_errors(const Execution& execution, const Operands& operands, float* values,
                 float* bounds);

}  // namespace kgfast
