#include "host/compose.h"

#include "host/buffer.h"
#include "host/load.h"
#include "scores/trig.h"

namespace kgfast {
namespace {

void compose_reals(const Composition& how, double sign, const double* anchor,
                   const double* relation, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i)
    out[i] = static_cast<float>(how.kind == Compose::add ? anchor[i] + sign * relation[i]
                                                         : anchor[i] * relation[i]);
}

// `turns`: room for the rotations of phases.
void compose_complex(const Composition& how, double sign, const double* anchor,
                     const double* relation, int64_t width, double* turns, float* out) {
  const bool rotates = how.kind == Compose::rotate;
  const int64_t features = width / 2, step = how.interleaved ? 2 : 1;
  const int64_t imaginary = how.interleaved ? 1 : features;
  for (int64_t k = 0; rotates && k < features; ++k) {
    const CosSin turn = cos_sin(relation[k] * how.unit + 0.0);
    turns[k] = turn.cosine;
    turns[features + k] = turn.sine;
  }
  const double* real = rotates ? turns : relation;
  const double* other = real + (rotates ? features : imaginary);
  for (int64_t k = 0; k < features; ++k) {
    const int64_t i = k * step, j = i + imaginary, at = rotates ? k : i;
    const double x = real[at], y = sign * other[at];
    // The analyzer does not follow width / 2, and takes the anchor for empty.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    out[i] = static_cast<float>(anchor[i] * x - anchor[j] * y);
    out[j] = static_cast<float>(anchor[i] * y + anchor[j] * x);
  }
}

}  // namespace

void compose(const Composition& how, int64_t count, int64_t width, float* out) {
  const bool is_real = how.kind == Compose::add || how.kind == Compose::multiply;
  const int64_t relation_width = how.kind == Compose::rotate ? width / 2 : width;
  const double sign = how.conjugates ? -1.0 : 1.0;
  Buffer<double> room(3 * width);
  double *anchor = room.data, *relation = anchor + width, *turns = relation + width;
  for (int64_t query = 0; query < count; ++query, out += width) {
    load_doubles(how.anchors, how.anchor_ids[query], 0, 0, width, anchor);
    load_doubles(how.relations, how.relation_ids[query], 0, 0, relation_width, relation);
    if (is_real)
      compose_reals(how, sign, anchor, relation, width, out);
    else
      compose_complex(how, sign, anchor, relation, width, turns, out);
  }
}

}  // namespace kgfast
