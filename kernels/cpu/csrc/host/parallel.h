// Aligned memory, and tasks on a pool's threads, handed out one at a time.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>

#include "host/execution.h"
#include "host/pool.h"

namespace kgfast {

template <class T>
struct Buffer {  // 64-byte aligned, not initialised
  explicit Buffer(int64_t count)
      : data(static_cast<T*>(::operator new(sizeof(T) * std::max<int64_t>(count, 1),
                                            std::align_val_t{64}))) {}
  ~Buffer() { ::operator delete(data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the number of `threads` that have work.
inline int threads_for(int64_t tasks, int threads) {
  return static_cast<int>(std::clamp<int64_t>(tasks, 1, std::max(threads, 1)));
}

// Never interrupts: for work that takes milliseconds.
inline bool never() { return false; }

// Runs body(worker, task) for every task; returns true if interrupted. Only worker 0, the calling
// thread, may ask for it. An exception of a body ends the work of all, and is thrown again.
template <class Body>
bool parallel(int threads, int64_t count, const std::function<bool()>& interrupted, Body body) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stopped{false};
  Pool::run(threads_for(count, threads), [&](int worker) {
    Clock::time_point last = Clock::now();
    try {
      for (;;) {
        if (worker == 0 && Clock::now() - last > std::chrono::milliseconds(50)) {
          if (interrupted()) stopped = true;
          last = Clock::now();
        }
        const int64_t task = stopped ? count : next.fetch_add(1);
        if (task >= count) return;
        body(worker, task);
      }
    } catch (...) {
      stopped = true;
      throw;
    }
  });
  return stopped;
}

// Runs body(worker, first, last) for ranges of 0 .. count - 1, of `size` each but the last.
template <class Body>
bool parallel_ranges(int threads, int64_t count, int64_t size,
                     const std::function<bool()>& interrupted, Body body) {
  return parallel(threads, divide_up(count, size), interrupted, [&](int worker, int64_t task) {
    body(worker, task * size, std::min((task + 1) * size, count));
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
