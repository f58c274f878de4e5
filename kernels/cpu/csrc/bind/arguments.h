// The part of Python's C API that bindings use. All calls belong to the limited API of Python 3.11,
// so one extension serves Python 3.11 and every later version.
#pragma once
#include <Python.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace kgfast {
namespace {
namespace py {

// Exception for an error that Python has set.
struct error_already_set : std::exception {};

struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using object = std::unique_ptr<PyObject, Release>;

inline object owned(PyObject* made) {
  if (!made) throw error_already_set();
  return object(made);
}

inline void throw_if_set() {
  if (PyErr_Occurred()) throw error_already_set();
}

[[noreturn]] inline void refuse(PyObject* kind, const char* message) {
  PyErr_SetString(kind, message);
  throw error_already_set();
}

// A value that a caller of a binding holds.
class handle {
 public:
  handle(PyObject* value) : value_(value) {}
  PyObject* ptr() const { return value_; }
  bool is_none() const { return value_ == Py_None; }
  template <class T>
  T cast() const;

 private:
  PyObject* value_;
};

class tuple : public handle {
 public:
  tuple(PyObject* value) : handle(value) {
    if (!PyTuple_Check(value)) refuse(PyExc_TypeError, "expected a tuple");
  }
  handle operator[](Py_ssize_t place) const {
    PyObject* found = PyTuple_GetItem(ptr(), place);
    if (!found) throw error_already_set();
    return found;
  }
};

inline size_t len(const handle& value) {
  const Py_ssize_t count = PySequence_Size(value.ptr());
  throw_if_set();
  return static_cast<size_t>(count);
}

template <class T, class = void>
struct Cast;  // undefined for types that no binding takes

template <class T>
struct Cast<T, std::enable_if_t<std::is_integral_v<T>>> {
  static T of(PyObject* value) {
    using Wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    Wide wide;
    if constexpr (std::is_signed_v<T>) {
      wide = PyLong_AsLongLong(value);
    } else {
      wide = PyLong_AsUnsignedLongLong(value);
    }
    throw_if_set();
    using Limits = std::numeric_limits<T>;
    if (wide < static_cast<Wide>(Limits::min()) || wide > static_cast<Wide>(Limits::max()))
      refuse(PyExc_OverflowError, "a number is out of the range of its argument");
    return static_cast<T>(wide);
  }
};

template <>
struct Cast<bool> {
  static bool of(PyObject* value) {
    const int is_true = PyObject_IsTrue(value);
    throw_if_set();
    return is_true != 0;
  }
};

template <class T>
struct Cast<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static T of(PyObject* value) {
    const double number = PyFloat_AsDouble(value);
    throw_if_set();
    return static_cast<T>(number);
  }
};

template <>
struct Cast<std::string> {
  static std::string of(PyObject* value) {
    Py_ssize_t count = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &count);
    if (!text) throw error_already_set();
    return {text, static_cast<size_t>(count)};
  }
};

template <class T>
struct Cast<T, std::enable_if_t<std::is_base_of_v<handle, T>>> {
  static T of(PyObject* value) { return value; }
};

template <class T>
struct Cast<std::optional<T>> {
  static std::optional<T> of(PyObject* value) {
    if (value == Py_None) return std::nullopt;
    return Cast<T>::of(value);
  }
};

template <class T>
struct Cast<std::vector<T>> {
  static std::vector<T> of(PyObject* value) {
    std::vector<T> found(len(value));
    for (size_t i = 0; i < found.size(); ++i)
      found[i] = Cast<T>::of(owned(PySequence_GetItem(value, static_cast<Py_ssize_t>(i))).get());
    return found;
  }
};

template <class Several, class... T, size_t... I>
Several several(PyObject* value, std::index_sequence<I...>) {
  const tuple given(value);
  if (len(given) != sizeof...(T)) refuse(PyExc_TypeError, "a tuple has another length");
  return {Cast<T>::of(given[I].ptr())...};
}

template <class... T>
struct Cast<std::tuple<T...>> {
  static std::tuple<T...> of(PyObject* value) {
    return several<std::tuple<T...>, T...>(value, std::index_sequence_for<T...>{});
  }
};

template <class A, class B>
struct Cast<std::pair<A, B>> {
  static std::pair<A, B> of(PyObject* value) {
    return several<std::pair<A, B>, A, B>(value, std::make_index_sequence<2>{});
  }
};

template <class T>
T handle::cast() const {
  return Cast<T>::of(value_);
}

inline object made(object value) { return value; }
inline object made(bool value) { return owned(PyBool_FromLong(value)); }
inline object made(int value) { return owned(PyLong_FromLong(value)); }
inline object made(unsigned value) { return owned(PyLong_FromUnsignedLong(value)); }
inline object made(int64_t value) { return owned(PyLong_FromLongLong(value)); }
inline object made(double value) { return owned(PyFloat_FromDouble(value)); }
inline object made(const char* text) { return owned(PyUnicode_FromString(text)); }
inline object made(const std::string& text) { return made(text.c_str()); }

template <class... T>
object made(std::tuple<T...> values) {
  object found = owned(PyTuple_New(sizeof...(T)));
  Py_ssize_t place = 0;
  std::apply(
      [&](auto&... value) {
        ((PyTuple_SetItem(found.get(), place++, made(std::move(value)).release())), ...);
      },
      values);
  return found;
}

template <class T>
object made(std::vector<T> values) {
  object found = owned(PyList_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i)
    PyList_SetItem(found.get(), static_cast<Py_ssize_t>(i), made(std::move(values[i])).release());
  return found;
}

// Wraps a C++ object in a capsule, which Python holds without knowing its type.
template <class T>
object held(std::unique_ptr<T> value, const char* name) {
  const auto destroy = [](PyObject* capsule) {
    delete static_cast<T*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  };
  object capsule = owned(PyCapsule_New(value.get(), name, destroy));
  value.release();
  return capsule;
}

template <class T>
T& held_in(const handle& capsule, const char* name) {
  void* found = PyCapsule_GetPointer(capsule.ptr(), name);
  if (!found) throw error_already_set();
  return *static_cast<T*>(found);
}

// Runs a binding, and sets Python's error for its exceptions. The unwinding of a thread is not
// caught, as it is no error.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body().release();
  } catch (const error_already_set&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::logic_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <auto function>
struct Call;

template <class Result, class... T, Result (*function)(T...)>
struct Call<function> {
  template <size_t... I>
  static object call(PyObject* const* given, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<Result>) {
      function(Cast<std::decay_t<T>>::of(given[I])...);
      Py_INCREF(Py_None);
      return object(Py_None);
    } else {
      return made(function(Cast<std::decay_t<T>>::of(given[I])...));
    }
  }

  static PyObject* run(PyObject*, PyObject* const* given, Py_ssize_t count) {
    return guarded([&] {
      if (count != sizeof...(T)) refuse(PyExc_TypeError, "another number of arguments");
      return call(given, std::index_sequence_for<T...>{});
    });
  }
};

// The functions of a module, by name.
class Methods {
 public:
  template <auto function>
  void def(const char* name) {
    const auto run = reinterpret_cast<PyCFunction>(
        reinterpret_cast<void (*)()>(&Call<function>::run));
    all_.push_back({name, run, METH_FASTCALL, nullptr});
  }
  PyMethodDef* all() {
    all_.push_back({nullptr, nullptr, 0, nullptr});
    return all_.data();
  }

 private:
  std::vector<PyMethodDef> all_;
};

}  // namespace py
}  // namespace
}  // namespace kgfast
