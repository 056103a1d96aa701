#include "attention/workers.hpp"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "process.hpp"

namespace headrace::attention {
namespace {

class Workers {
 public:
  // The threads are another process's.
  bool forked() const { return mark_.forked(); }

  void run(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work) {
    std::unique_lock calls(calls_, std::try_to_lock);
    if (!calls.owns_lock() || threads < 2 || count < 2) {
      for (std::size_t i = 0; i < count; ++i) work(i);
      return;
    }
    auto helpers = (threads < count ? threads : count) - 1;
    {
      std::lock_guard lock(mutex_);
      try {
        while (threads_.size() < helpers) threads_.emplace_back([this] { loop(); });
      } catch (const std::system_error&) {  // the system refuses another thread
        helpers = threads_.size();
      }
      work_ = &work;
      count_ = count;
      next_.store(0, std::memory_order_relaxed);
      wanted_ = helpers;
    }
    for (std::size_t i = 0; i < helpers; ++i) begin_.notify_one();
    take();
    std::unique_lock lock(mutex_);
    wanted_ = 0;  // parts are taken: helpers that have not begun need not
    done_.wait(lock, [this] { return running_ == 0; });
    work_ = nullptr;
  }

 private:
  void take() {
    for (auto i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*work_)(i);
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      begin_.wait(lock, [this] { return wanted_ > 0; });
      --wanted_;
      ++running_;
      lock.unlock();
      take();
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  ForkMark mark_;
  std::mutex calls_;  // of one caller
  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t count_ = 0;
  std::size_t wanted_ = 0;   // helpers that have not begun
  std::size_t running_ = 0;  // helpers that have not ended
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::thread> threads_;
};

// Those of this process: a forked child has none of its parent's threads, and begins anew. Never
// deleted once used: threads wait in it until the process ends.
Workers& workers() {
  static constinit std::atomic<Workers*> current = nullptr;
  auto* existing = current.load(std::memory_order_acquire);
  if (existing != nullptr && !existing->forked()) return *existing;
  auto created = std::make_unique<Workers>();
  if (current.compare_exchange_strong(existing, created.get())) return *created.release();
  return *existing;  // another thread's, of now
}

}  // namespace

void run_parts(std::size_t count, std::size_t threads,
               const std::function<void(std::size_t)>& work) {
  if (threads < 2 || count < 2) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  workers().run(count, threads, work);
}

}  // namespace headrace::attention
