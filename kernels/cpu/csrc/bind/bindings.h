// What the bindings of every consumer share: Python's views, pointers and interrupts.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/machine.h"
#include "bind/unlocked.h"

namespace kgfast {

namespace py = pybind11;

// (pointer, dtype, row stride, column starts, column step), strides in elements
inline View as_view(const py::tuple& spec) {
  View view;
  view.data = reinterpret_cast<const char*>(spec[0].cast<uintptr_t>());
  view.dtype = static_cast<DType>(spec[1].cast<int>());
  view.row_stride = spec[2].cast<int64_t>();
  const auto starts = spec[3].cast<std::vector<int64_t>>();
  for (size_t plane = 0; plane < starts.size() && plane < kMaxPlanes; ++plane)
    view.start[plane] = starts[plane];
  view.step = spec[4].cast<int64_t>();
  return view;
}

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

inline const Isa& isa_named(const std::string& name) {
  const Isa* isa = find_isa(name.c_str());
  if (!isa) throw std::invalid_argument("no such instruction set here: " + name);
  return *isa;
}

// What a sweep is given. `factor` is None or a view.
inline void set_operands(SweepJob& job, int score, const py::tuple& query, const py::tuple& table,
                         const py::object& factor) {
  job.score = static_cast<ScoreId>(score);
  job.query = as_view(query);
  job.table = as_view(table);
  if (!factor.is_none()) job.factor = as_view(factor.cast<py::tuple>());
  const auto planes = [](const py::tuple& view) { return static_cast<int>(py::len(view[3])); };
  job.planes = planes(table) + !factor.is_none();
  job.query_planes = planes(query);
}

// None where there is no such tensor: that of an empty one is 0.
using MaybePointer = std::optional<uintptr_t>;

using MaybeView = std::optional<py::tuple>;

inline View as_view_if(const MaybeView& spec) { return spec ? as_view(*spec) : View{}; }

inline int planes_of(ScoreId score) { return score == ScoreId::rotate ? 2 : 1; }

// First bad rows of queries, candidates and factor, -1 where there is none.
inline py::tuple bad_rows(const SweepStatus& status) {
  const auto row = [](int64_t bad) { return bad == INT64_MAX ? int64_t{-1} : bad; };
  return py::make_tuple(row(status.bad_query), row(status.bad_candidate), row(status.bad_factor));
}

}  // namespace kgfast
