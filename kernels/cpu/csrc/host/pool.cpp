#include "host/pool.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>

#include "host/fpmode.h"

namespace kgfast {
namespace {

std::atomic<Pool*> current{nullptr};  // never freed: its threads sleep until the process ends
thread_local bool is_calling = false;

#if !defined(_WIN32)  // Windows has no fork()
void forget_pool() {
  current = nullptr;
  is_calling = false;
}

[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
#endif

struct Calling {
  Calling() { is_calling = true; }
  ~Calling() { is_calling = false; }
};

std::exception_ptr failure_of(const std::function<void(int)>& work, int worker) {
  try {
    work(worker);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

void Pool::run(int workers, const std::function<void(int)>& work) {
  if (workers <= 1 || is_calling) return work(0);
  Pool& pool = of_process();
  const std::lock_guard<std::mutex> one(pool.calls_);
  const Calling calling;
  pool.call(workers - 1, work);
}

Pool& Pool::of_process() {
  Pool* pool = current;
  if (pool) return *pool;
  auto fresh = std::make_unique<Pool>();
  if (current.compare_exchange_strong(pool, fresh.get())) pool = fresh.release();
  return *pool;
}

void Pool::call(int workers, const std::function<void(int)>& work) {
  workers = start(workers);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    active_ = pending_ = workers;
    ++call_;
  }
  wake_.notify_all();
  std::exception_ptr error = failure_of(work, 0);
  if (current != this)  // a signal handler forked, and its child came back here
    throw std::runtime_error("a child process cannot finish the call that it was forked in");
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return pending_ == 0; });
  if (error_) error = error_;
  error_ = nullptr;
  lock.unlock();
  if (error) std::rethrow_exception(error);
}

// Starts threads up to `workers`; returns how many of these there are.
int Pool::start(int workers) {
  try {
    for (int index = static_cast<int>(threads_.size()); index < workers; ++index)
      threads_.emplace_back([this, index, seen = call_] { loop(index, seen); });
  } catch (const std::exception&) {  // no more threads, or no memory for threads: fewer will do
  }
  return std::min(workers, static_cast<int>(threads_.size()));
}

void Pool::loop(int index, uint64_t seen) {
  const FloatMode mode(FloatMode::kIeee);  // a thread begins with the mode of its maker
  // The first exception of a thread takes memory for the C++ library's own thread-local data, and
  // the process ends where there is none. So the thread throws one here, while memory is at hand.
  failure_of([](int) { throw std::bad_alloc(); }, index);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return call_ != seen; });
    seen = call_;
    if (index >= active_) continue;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    const std::exception_ptr error = failure_of(work, index + 1);
    lock.lock();
    if (error && !error_) error_ = error;
    if (--pending_ == 0) done_.notify_one();
  }
}

}  // namespace kgfast
