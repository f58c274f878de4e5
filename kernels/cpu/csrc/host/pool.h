// A small pool of std::thread. The caller works too, as worker 0; idle workers sleep.
//
// One call at a time has the workers: two would only share the same cores. A call within a call
// (from a signal handler of Python that runs in the middle of a sweep) has the caller alone. A
// process after fork() makes its own pool.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kgfast {

class Pool {
 public:
  // Calls work(0) .. work(workers - 1), each on a thread of its own, and returns when all have
  // returned; throws their exception again. Calls fewer if no more threads can be had: the called
  // workers do all that is left.
  static void run(int workers, const std::function<void(int)>& work);

 private:
  static Pool& of_process();
  void call(int workers, const std::function<void(int)>& work);
  int start(int workers);
  void loop(int index, uint64_t seen);

  std::mutex calls_;  // held by the one call that has the workers
  std::mutex mutex_;  // guards the fields below, but threads_: the call's own
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::exception_ptr error_;  // the exception of a worker of the current call
  int active_ = 0;    // workers of the current call
  int pending_ = 0;   // active workers that have not ended yet
  uint64_t call_ = 0;
};

}  // namespace kgfast
