// Work for a pool, handed out one piece at a time: counts are integers, so who does what is free.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace kgfast {

// Hands out 0 .. count - 1, until someone interrupts.
class Tasks {
 public:
  Tasks(int64_t count, const std::function<bool()>& interrupted)
      : count_(count), interrupted_(interrupted), asked_(Clock::now()) {}

  // The next task, or -1. Worker 0 is the calling thread: it alone may ask for interruption.
  int64_t next(int worker) {
    if (worker == 0 && Clock::now() - asked_ > std::chrono::milliseconds(50)) {
      if (interrupted_()) stopped_ = true;
      asked_ = Clock::now();
    }
    if (stopped_) return -1;
    const int64_t task = next_.fetch_add(1);
    return task < count_ ? task : -1;
  }
  bool stopped() const { return stopped_; }
  // Hands out no more.
  void abandon() { stopped_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  const int64_t count_;
  const std::function<bool()>& interrupted_;
  Clock::time_point asked_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace kgfast
