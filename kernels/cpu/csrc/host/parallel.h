// Pieces of work on a pool's threads.
#pragma once
#include <algorithm>
#include <functional>

#include "host/buffer.h"
#include "host/execution.h"
#include "host/pool.h"
#include "host/tasks.h"

namespace kgfast {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many of `threads` have work.
inline int threads_for(int64_t tasks, int threads) {
  return static_cast<int>(std::clamp<int64_t>(tasks, 1, std::max(threads, 1)));
}

// For what takes milliseconds and is not interrupted.
inline bool never() { return false; }

// Runs body(worker, task) for every task; true if it was interrupted. What a body throws ends the
// others' work and is thrown again.
template <class Body>
bool parallel(int threads, int64_t count, const std::function<bool()>& interrupted, Body body) {
  Tasks tasks(count, interrupted);
  Pool::run(threads_for(count, threads), [&](int worker) {
    try {
      for (int64_t task; (task = tasks.next(worker)) >= 0;) body(worker, task);
    } catch (...) {
      tasks.abandon();
      throw;
    }
  });
  return tasks.stopped();
}

// Runs body(worker, first, last) for parts of 0 .. count - 1, of so many each.
template <class Body>
bool parallel_parts(int threads, int64_t count, int64_t part,
                    const std::function<bool()>& interrupted, Body body) {
  return parallel(threads, divide_up(count, part), interrupted, [&](int worker, int64_t task) {
    body(worker, task * part, std::min((task + 1) * part, count));
  });
}

// Runs body(task, scratch) for every task, on as many threads as have work; true if interrupted.
template <class Body>
bool parallel_with_scratch(const Execution& execution, int64_t count, int64_t floats, Body body) {
  const int threads = threads_for(count, execution.threads);
  Buffer<float> scratch(threads * floats);
  return parallel(threads, count, execution.interrupted, [&](int worker, int64_t task) {
    body(task, scratch.data + worker * floats);
  });
}

}  // namespace kgfast
