#include "pool.h"

#include <unistd.h>

namespace kgfast {

void Pool::run(int workers, const std::function<void(int)>& work) {
  if (workers <= 1) return work(0);
  static std::mutex calls;  // one parallel call at a time: two would only share the same cores
  static Pool* pool = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> one(calls);
  if (owner != getpid()) {  // never freed: its threads sleep until the process ends
    pool = new Pool;
    owner = getpid();
  }
  pool->start(workers - 1);
  {
    const std::lock_guard<std::mutex> lock(pool->mutex_);
    pool->work_ = &work;
    pool->active_ = pool->pending_ = workers - 1;
    ++pool->call_;
  }
  pool->wake_.notify_all();
  work(0);
  std::unique_lock<std::mutex> lock(pool->mutex_);
  pool->done_.wait(lock, [] { return pool->pending_ == 0; });
}

void Pool::start(int workers) {
  while (static_cast<int>(threads_.size()) < workers) {
    const int index = static_cast<int>(threads_.size());
    threads_.emplace_back([this, index] { loop(index); });
  }
}

void Pool::loop(int index) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return call_ != seen; });
    seen = call_;
    if (index >= active_) continue;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    work(index + 1);
    lock.lock();
    if (--pending_ == 0) done_.notify_one();
  }
}

}  // namespace kgfast
