// Queue of finished tasks that were submitted with `notify`; shared by the executors of a process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

struct Completion {
  std::uint64_t handle;
  std::string error;  // empty: succeeded
};

// Wakes the thread that began to wait last: it ran a moment ago, and its processor may not even
// sleep yet. The others are woken while it is busy.
class Completions {
 public:
  void push(Completion completion) {
    std::unique_lock lock(mutex_);
    finished_.push_back(std::move(completion));
    notify(lock);
  }

  // All tasks finished since the last call; waits for the first one.
  std::vector<Completion> take(std::chrono::duration<double> timeout) {
    if (!(timeout.count() >= 0)) throw std::invalid_argument("a timeout is at least 0 s");
    timeout = std::min(timeout, std::chrono::duration<double>(1e9));
    std::unique_lock lock(mutex_);
    static thread_local auto here = std::make_shared<std::condition_variable>();
    waiting_.push_back(here);
    here->wait_for(lock, timeout, [this] { return !finished_.empty() || woken_; });
    std::erase(waiting_, here);
    woken_ = false;
    return std::exchange(finished_, {});
  }

  // Makes one `take` return at once: a waiting one, or the next.
  void wake() {
    std::unique_lock lock(mutex_);
    woken_ = true;
    notify(lock);
  }

 private:
  void notify(std::unique_lock<std::mutex>& lock) {
    if (waiting_.empty()) return;
    auto latest = waiting_.back();
    lock.unlock();  // else the woken thread would wait for it
    latest->notify_one();
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<std::condition_variable>> waiting_;
  std::vector<Completion> finished_;
  bool woken_ = false;
};

}  // namespace headrace
