// A scope without Python's lock, in which kernels run.
#pragma once
#include <Python.h>

#include <functional>

#include "host/fpmode.h"
#include "host/pool.h"

namespace kgfast {

// Takes Python's lock again for the calling thread. While the interpreter ends, only the main
// thread gets the lock; other threads wait here until the process is gone, as in Python 3.14.
// Earlier versions unwind such a thread, which ends the process at the first destructor.
void take_python_lock(PyThreadState* state);

// True if the calling thread must not call Python any more.
bool python_is_gone();

// True if the calling thread handles signals.
bool is_main_thread();

// Function that tells whether the interpreter ends.
using IsFinalizing = int (*)();

// Notes the main thread, by threading's `ident`, when the module is loaded.
void note_python(unsigned long main_ident, IsFinalizing function);

namespace {

// Scope in which the calling thread is without Python's lock and computes in IEEE arithmetic, and
// the pool has no more workers than `threads` need.
class Unlocked {
 public:
  explicit Unlocked(int threads) : state_(PyEval_SaveThread()) { Pool::trim(threads); }
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
