// A scope without Python's lock, in which kernels run.
#pragma once
#include <pybind11/pybind11.h>

#include <chrono>
#include <functional>
#include <thread>

#include "host/fpmode.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace kgfast {
namespace {

inline unsigned long main_thread = 0;  // thread that handles signals

#if !defined(_WIN32)
// After fork() the thread that called fork() is the main one.
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
#endif

bool is_main_thread() { return main_thread == PyThread_get_thread_ident(); }

// True if the calling thread must not call Python any more.
bool python_is_gone() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool ends = Py_IsFinalizing() != 0;
#else
  const bool ends = _Py_IsFinalizing() != 0;
#endif
  return ends && !is_main_thread();
}

[[noreturn]] void wait_for_the_end() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Takes Python's lock again for the calling thread. While the interpreter ends, only the main
// thread gets the lock; other threads wait here until the process is gone, as in Python 3.14.
// Earlier versions unwind such a thread, which ends the process at the first destructor.
void take_python_lock(PyThreadState* state) {
  if (python_is_gone()) wait_for_the_end();
#if defined(__GLIBCXX__)
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {  // the interpreter began to end while this thread waited
    wait_for_the_end();
  }
#else
  PyEval_RestoreThread(state);
#endif
}

// Scope in which the calling thread is without Python's lock and computes in IEEE arithmetic.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { take_python_lock(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Asks whether Python wants to interrupt: runs the handlers of pending signals.
  std::function<bool()> interrupted() {
    return [this] { return python_is_gone() || (is_main_thread() && handle_signals()); };
  }

 private:
  bool handle_signals() {
    return mode_.outside([this] {
      take_python_lock(state_);
      const bool raised = PyErr_CheckSignals() != 0;
      state_ = PyEval_SaveThread();
      return raised;
    });
  }

  PyThreadState* state_;
  FloatMode mode_{FloatMode::kIeee};
};

}  // namespace
}  // namespace kgfast
