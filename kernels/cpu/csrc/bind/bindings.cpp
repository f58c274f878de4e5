// kgfast.kernels._cpu: pointers, sizes and strides in, numbers into memory that Python has made.
//
// One unit for all bindings: reading pybind11 takes as long as compiling what uses it here.
#include "bind/losses.h"
#include "bind/rank.h"
#include "bind/scores.h"

namespace kgfast {
namespace {

double py_roof(const std::string& isa, int score, int64_t features, double seconds) {
  const Isa& kernels = isa_named(isa);
  const Unlocked unlocked(1);
  return roof(kernels, static_cast<ScoreId>(score), features, seconds);
}

bool has_score(const std::string& isa, int score) {
  try {
    isa_named(isa).facts(static_cast<ScoreId>(score));
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

std::string py_find_isa(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  return isa ? isa->name : "";
}

bool has_bf16(const std::string& isa) { return has_bf16_losses(isa_named(isa)); }

unsigned py_find_tiers(const std::string& isa) { return find_tiers(isa_named(isa)); }

// (bit of the tier, instruction set, what it needs, whether this machine has that, and this build)
py::list py_tier_engines() {
  py::list found;
  for (const TierEngine& engine : tier_engines())
    found.append(py::make_tuple(static_cast<unsigned>(engine.tier), engine.isa, engine.needs,
                                engine.has, engine.is_built));
  return found;
}

}  // namespace
}  // namespace kgfast

PYBIND11_MODULE(_cpu, module) {
  const auto main = pybind11::module_::import("threading").attr("main_thread")();
  kgfast::note_main_thread(main.attr("ident").cast<unsigned long>());
  module.doc() = "SIMD kernels of kgfast for the CPU";
  kgfast::bind_rank(module);
  kgfast::bind_scores(module);
  kgfast::bind_losses(module);
  module.def("roof", &kgfast::py_roof);
  module.def("has_score", &kgfast::has_score);
  module.def("find_isa", &kgfast::py_find_isa);
  module.def("find_tiers", &kgfast::py_find_tiers);
  module.def("tier_engines", &kgfast::py_tier_engines);
  module.def("has_bf16", &kgfast::has_bf16);
}
