// Composes queries from rows of anchors and relations, as kgfast's models do without gradients.
#pragma once
#include <cstdint>

#include "host/view.h"

namespace kgfast {

// Action of a relation on an anchor, in the order of COMPOSED in topk.py.
enum class Compose : int { add, multiply, multiply_complex, rotate };

struct Composition {
  Compose kind;
  bool conjugates, interleaved;  // conjugates (add: negates) the relation; the complex layout
  double unit;                   // radians of a phase of 1
  View anchors, relations;       // one plane each: all numbers of a row
  const int64_t *anchor_ids, *relation_ids;
};

// Fills `out` [count][width] in float32. Every operation is one of IEEE float64, in the order of
// models/*.py, and results are rounded once.
void compose(const Composition& how, int64_t count, int64_t width, float* out);

}  // namespace kgfast
