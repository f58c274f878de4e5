// A small pool of std::thread. The caller works too, as worker 0; idle workers sleep. A child
// process after fork() has no workers of its parent's, so it makes its own.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kgfast {

class Pool {
 public:
  // Calls work(0) .. work(workers - 1), each on a thread of its own, and returns when all have.
  static void run(int workers, const std::function<void(int)>& work);

 private:
  void start(int workers);
  void loop(int index);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  int active_ = 0;    // workers of the current call
  int pending_ = 0;   // of those, still at work
  uint64_t call_ = 0;
};

}  // namespace kgfast
