// A scope without Python's lock, in which kernels run.
#pragma once
#include <pybind11/pybind11.h>

#include <functional>

#include "host/fpmode.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace kgfast {
namespace {

inline unsigned long main_thread = 0;  // thread that handles signals

#if !defined(_WIN32)
// After fork() the thread that called fork() is the main one. Nothing here throws.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const int registered = pthread_atfork(
    nullptr, nullptr, [] { main_thread = PyThread_get_thread_ident(); });
#endif

// Scope in which the calling thread is without Python's lock and computes in IEEE arithmetic.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  // While the interpreter ends, Python unwinds threads that want its lock.
  // NOLINTNEXTLINE(bugprone-unsafe-to-allow-exceptions)
  ~Unlocked() noexcept(false) { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Asks whether Python wants to interrupt: runs the handlers of pending signals.
  std::function<bool()> interrupted() {
    return [this] { return main_thread == PyThread_get_thread_ident() && handle_signals(); };
  }

 private:
  bool handle_signals() {
    return mode_.outside([this] {
      PyEval_RestoreThread(state_);
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
