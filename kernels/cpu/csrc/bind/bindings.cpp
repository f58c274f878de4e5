// kgfast.kernels._cpu: takes pointers, sizes and strides, and writes to memory that Python made.
//
// One unit for all bindings.
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

unsigned py_find_tiers(const std::string& isa) { return find_tiers(isa_named(isa)); }

using EngineOfTier = std::tuple<unsigned, std::string, std::string, bool, bool>;

// Returns (tier's bit, instruction set, needed instructions, machine has these, build has it).
std::vector<EngineOfTier> py_tier_engines() {
  std::vector<EngineOfTier> found;
  for (const TierEngine& engine : tier_engines())
    found.emplace_back(static_cast<unsigned>(engine.tier), engine.isa, engine.needs, engine.has,
                       engine.is_built);
  return found;
}

py::object attribute(const py::object& of, const char* name) {
  return py::owned(PyObject_GetAttrString(of.get(), name));
}

// Finds the function that says, without Python's lock, if Python ends; the limited API has this
// function since 3.13.
IsFinalizing find_is_finalizing() {
  const char* name = Py_Version < 0x030D0000 ? "_Py_IsFinalizing" : "Py_IsFinalizing";
  const py::object ctypes = py::owned(PyImport_ImportModule("ctypes"));
  const py::object function = attribute(attribute(ctypes, "pythonapi"), name);
  const py::object cast = attribute(ctypes, "cast"), type = attribute(ctypes, "c_void_p");
  const py::object found =
      py::owned(PyObject_CallFunctionObjArgs(cast.get(), function.get(), type.get(), nullptr));
  const py::object address = attribute(found, "value");
  return reinterpret_cast<IsFinalizing>(py::handle(address.get()).cast<uintptr_t>());
}

unsigned long ident_of_main_thread() {
  const py::object threading = py::owned(PyImport_ImportModule("threading"));
  const py::object function = attribute(threading, "main_thread");
  const py::object thread = py::owned(PyObject_CallFunctionObjArgs(function.get(), nullptr));
  return py::handle(attribute(thread, "ident").get()).cast<unsigned long>();
}

PyMethodDef* methods_of_the_module() {
  static py::Methods methods;
  bind_rank(methods);
  bind_scores(methods);
  bind_losses(methods);
  methods.def<&py_roof>("roof");
  methods.def<&has_score>("has_score");
  methods.def<&py_find_isa>("find_isa");
  methods.def<&py_find_tiers>("find_tiers");
  methods.def<&py_tier_engines>("tier_engines");
  return methods.all();
}

}  // namespace
}  // namespace kgfast

PyMODINIT_FUNC PyInit__cpu() {
  return kgfast::py::guarded([] {
    kgfast::note_python(kgfast::ident_of_main_thread(), kgfast::find_is_finalizing());
    static PyModuleDef definition = {
        PyModuleDef_HEAD_INIT, "_cpu", "SIMD kernels of kgfast for the CPU", -1,
        kgfast::methods_of_the_module(), nullptr, nullptr, nullptr, nullptr};
    auto module = kgfast::py::owned(PyModule_Create(&definition));
#ifdef Py_GIL_DISABLED
    // Kernels run without Python's lock anyway.
    PyUnstable_Module_SetGIL(module.get(), Py_MOD_GIL_NOT_USED);
#endif
    return module;
  });
}
