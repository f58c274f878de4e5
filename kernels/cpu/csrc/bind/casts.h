// Conversions of Python's arguments: a struct is read from an object that has fields of the same
// names (kernels/cpu/views.py), memory from a tensor or an address. Python has checked all
// arguments, and allocated the outputs.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "host/backward.h"
#include "host/execution.h"

namespace kgfast {

namespace py = pybind11;

// Memory of a tensor, or at an address; nullptr for None.
template <class T>
struct Memory {
  T* data = nullptr;
  operator T*() const { return data; }
};

inline void* address_of(py::handle value) {
  static PyObject* const name = PyUnicode_InternFromString("data_ptr");
  if (value.is_none()) return nullptr;
  if (PyLong_Check(value.ptr())) return PyLong_AsVoidPtr(value.ptr());
  PyObject* address = PyObject_CallMethodNoArgs(value.ptr(), name);
  if (!address) throw py::error_already_set();
  return PyLong_AsVoidPtr(py::reinterpret_steal<py::object>(address).ptr());
}

// The instruction set, threads and tiers of a call.
struct Machine {
  std::string isa;
  int threads = 1;
  unsigned tiers = 0;
};

template <class T, class... Structs>
constexpr bool is_one_of = (std::is_same_v<T, Structs> || ...);
template <class T>
constexpr bool has_fields = is_one_of<T, Machine, View, Packed, Operands, Known, RowGroups>;

// Fields of a Python object, by name.
class Fields {
 public:
  explicit Fields(py::handle object) : object_(object) {}

  template <class T>
  void read(const char* name, T* to) const {
    if constexpr (std::is_enum_v<T>)
      *to = static_cast<T>(get(name).template cast<int>());
    else
      *to = get(name).template cast<T>();
  }
  template <class T>
  void read(const char* name, T** to) const {
    *to = static_cast<T*>(address_of(get(name)));
  }

 private:
  py::object get(const char* name) const {
    static thread_local std::unordered_map<const char*, PyObject*> names;
    PyObject*& key = names[name];
    if (!key) key = PyUnicode_InternFromString(name);
    PyObject* value = PyObject_GetAttr(object_.ptr(), key);
    if (!value) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(value);
  }
  const py::handle object_;
};

}  // namespace kgfast

namespace pybind11::detail {

template <class T>
struct type_caster<kgfast::Memory<T>> {
  PYBIND11_TYPE_CASTER(kgfast::Memory<T>, const_name("Memory"));
  bool load(handle source, bool) {
    value.data = static_cast<T*>(kgfast::address_of(source));
    return true;
  }
};

// Reads T by read_fields(fields, T*). None is an empty T.
template <class T>
struct type_caster<T, enable_if_t<kgfast::has_fields<T>>> {
  PYBIND11_TYPE_CASTER(T, const_name("object with fields"));
  bool load(handle source, bool) {
    value = T{};
    if (!source.is_none()) read_fields(kgfast::Fields(source), &value);
    return true;
  }
};

}  // namespace pybind11::detail

namespace kgfast {

inline void read_fields(const Fields& from, Machine* to) {
  from.read("isa", &to->isa);
  from.read("threads", &to->threads);
  from.read("tiers", &to->tiers);
}

inline void read_fields(const Fields& from, View* to) {
  from.read("data", &to->data);
  from.read("dtype", &to->dtype);
  from.read("num_rows", &to->count);
  from.read("row_stride", &to->row_stride);
  from.read("step", &to->step);
  std::vector<int64_t> start;
  from.read("start", &start);
  if (start.size() > kMaxPlanes) throw std::invalid_argument("a view has too many planes");
  std::copy(start.begin(), start.end(), to->start);
}

inline void read_fields(const Fields& from, Packed* to) {
  from.read("features", &to->features);
  from.read("panels", &to->panels);
  from.read("norms", &to->norms);
  from.read("bytes", &to->bytes);
  from.read("scale", &to->scale);
  from.read("int8", &to->int8);
}

inline void read_fields(const Fields& from, Operands* to) {
  from.read("score", &to->score);
  from.read("term_ulps", &to->term_ulps);
  from.read("query", &to->query);
  from.read("table", &to->rows.view);
  from.read("factor", &to->rows.factor);
  from.read("planes", &to->rows.planes);
  from.read("bias", &to->bias_view);
  from.read("candidate_ids", &to->candidate_ids);
  from.read("has_subset", &to->has_subset);
  from.read("num_candidates", &to->num_candidates);
  from.read("packed", &to->packed);
}

inline void read_fields(const Fields& from, Known* to) {
  from.read("indptr", &to->indptr);
  from.read("indices", &to->indices);
}

inline void read_fields(const Fields& from, RowGroups* to) {
  from.read("ids", &to->ids);
  from.read("order", &to->order);
  from.read("first", &to->first);
  from.read("num_ids", &to->count);
  from.read("whole_table", &to->whole_table);
}

}  // namespace kgfast
