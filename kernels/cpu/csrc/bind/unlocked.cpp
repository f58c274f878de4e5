#include "bind/unlocked.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <atomic>
#include <chrono>
#include <thread>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace kgfast {
namespace {

std::atomic<unsigned long> main_thread{0};
std::atomic<IsFinalizing> is_finalizing{nullptr};

#if !defined(_WIN32)
void note_this_thread() { main_thread = PyThread_get_thread_ident(); }

// After fork() the thread that called fork() is the main one.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, note_this_thread);
#endif

[[noreturn]] void wait_for_the_end() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

bool is_main_thread() { return main_thread == PyThread_get_thread_ident(); }

bool python_is_gone() { return is_finalizing.load()() != 0 && !is_main_thread(); }

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

void note_python(unsigned long main_ident, IsFinalizing function) {
  main_thread = main_ident;
  is_finalizing = function;
}

}  // namespace kgfast
