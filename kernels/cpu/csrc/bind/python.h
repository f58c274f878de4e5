// Views, pointers and interrupts of Python, shared by the bindings of every consumer. The Python
// code has checked all arguments, allocated the outputs and sorted the crops.
#pragma once
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/arguments.h"
#include "bind/unlocked.h"
#include "host/execution.h"
#include "host/machine.h"

namespace kgfast {
namespace {

using BadRows = std::tuple<int64_t, int64_t, int64_t>;
using MaybeTuple = std::optional<py::tuple>;
using Widths = std::vector<int64_t>;
using Machine = std::tuple<std::string, int, unsigned>;  // instruction set, threads, tiers

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

template <class T>
T* pointer(const py::handle& address) {
  return pointer<T>(address.cast<uintptr_t>());
}

int planes_in(const py::tuple& view) { return static_cast<int>(py::len(view[4])); }

// Reads (pointer, dtype, rows, row stride, column starts, column step), strides in elements.
View as_view(const py::tuple& spec) {
  View view;
  view.data = pointer<const char>(spec[0]);
  view.dtype = static_cast<DType>(spec[1].cast<int>());
  view.count = spec[2].cast<int64_t>();
  view.row_stride = spec[3].cast<int64_t>();
  const auto starts = spec[4].cast<std::vector<int64_t>>();
  for (size_t plane = 0; plane < starts.size() && plane < kMaxPlanes; ++plane)
    view.start[plane] = starts[plane];
  view.step = spec[5].cast<int64_t>();
  return view;
}

View as_view_if(const py::handle& spec) {
  return spec.is_none() ? View{} : as_view(spec.cast<py::tuple>());
}

// Reads (score, its term_ulps, queries, table, factor or None, bias or None, (ids, their count) or
// None, panels or None). Panels are (features, float32 panels, their norms, bytes, their scale,
// panels of the int8 tier), 0 where there are none.
Operands as_operands(const py::tuple& spec) {
  Operands operands{};
  const auto table = spec[3].cast<py::tuple>();
  operands.score = static_cast<ScoreId>(spec[0].cast<int>());
  operands.term_ulps = spec[1].cast<int>();
  operands.query = as_view(spec[2].cast<py::tuple>());
  operands.rows = {as_view(table), as_view_if(spec[4]), planes_in(table)};
  operands.bias_view = as_view_if(spec[5]);
  operands.num_candidates = operands.rows.view.count;
  operands.has_subset = !spec[6].is_none();
  if (operands.has_subset) {
    const auto ids = spec[6].cast<py::tuple>();
    operands.candidate_ids = pointer<const int64_t>(ids[0]);
    operands.num_candidates = ids[1].cast<int64_t>();
  }
  if (!spec[7].is_none()) {
    const auto packed = spec[7].cast<py::tuple>();
    operands.packed = {packed[0].cast<int64_t>(),       pointer<const float>(packed[1]),
                       pointer<const float>(packed[2]), pointer<const char>(packed[3]),
                       packed[4].cast<float>(),         pointer<const char>(packed[5])};
  }
  return operands;
}

// Reads (indptr, indices), or None.
Known as_known(const MaybeTuple& spec) {
  if (!spec) return {};
  return {pointer<const int64_t>((*spec)[0]), pointer<const int64_t>((*spec)[1])};
}

const Isa& isa_named(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  if (!isa) throw std::invalid_argument("no such instruction set here: " + name);
  return *isa;
}

// Runs body(execution) without Python's lock.
template <class Body>
auto compute(const Machine& machine, Body body) {
  const auto& [name, threads, tiers] = machine;
  const Isa& isa = isa_named(name);
  Unlocked unlocked(threads);
  const unsigned served = tiers & (find_tiers(isa) | static_cast<unsigned>(Tier::forced));
  return body(Execution{isa, threads, served, unlocked.interrupted()});
}

void stop_if(bool was_interrupted) {
  if (was_interrupted) throw py::error_already_set();
}

// Returns the first bad rows of queries, candidates and factor, -1 where there is none.
BadRows bad_rows(const SweepStatus& status) {
  stop_if(status.interrupted);
  const auto row = [](int64_t bad) { return bad == INT64_MAX ? int64_t{-1} : bad; };
  return {row(status.bad_query), row(status.bad_candidate), row(status.bad_factor)};
}

}  // namespace
}  // namespace kgfast
