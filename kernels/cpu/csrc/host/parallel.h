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

// Runs body(worker, task) for every task; true if it was interrupted. What a body throws ends the
// others' work and is thrown again.
template <class Body>
bool parallel(int threads, int64_t count, const std::function<bool()>& interrupted, Body body) {
  Tasks tasks(count, interrupted);
  Pool::run(static_cast<int>(std::clamp<int64_t>(count, 1, std::max(threads, 1))),
            [&](int worker) {
              try {
                for (int64_t task; (task = tasks.next(worker)) >= 0;) body(worker, task);
              } catch (...) {
                tasks.abandon();
                throw;
              }
            });
  return tasks.stopped();
}

// Runs body(task, scratch) for every task, on as many threads as have work; true if interrupted.
template <class Body>
bool parallel_with_scratch(const Execution& execution, int64_t count, int64_t floats, Body body) {
  const int threads =
      static_cast<int>(std::clamp<int64_t>(count, 1, std::max(execution.threads, 1)));
  Buffer<float> scratch(threads * floats);
  return parallel(threads, count, execution.interrupted, [&](int worker, int64_t task) {
    body(task, scratch.data + worker * floats);
  });
}

}  // namespace kgfast
