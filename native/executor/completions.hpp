// Finished tasks on their way to whoever asked to be told; shared by the executors of a process.
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

// Of several threads that wait, the one that came last is woken: it was at work a moment ago, and
// its processor may not even sleep yet. The others are there for when that one is kept.
class Completions {
 public:
  void push(Completion completion) {
    std::unique_lock lock(mutex_);
    finished_.push_back(std::move(completion));
    notify(lock);
  }

  // All that have finished since the last call; waits for the first one.
  std::vector<Completion> take(std::chrono::duration<double> timeout) {
    if (!(timeout.count() >= 0)) throw std::invalid_argument("a negative timeout, or none");
    timeout = std::min(timeout, std::chrono::duration<double>(1e9));
    std::unique_lock lock(mutex_);
    static thread_local auto here = std::make_shared<std::condition_variable>();
    waiting_.push_back(here);
    here->wait_for(lock, timeout, [this] { return !finished_.empty() || woken_; });
    std::erase(waiting_, here);
    woken_ = false;
    return std::exchange(finished_, {});
  }

  // Makes one `take` return at once: one that waits, or the next.
  void wake() {
    std::unique_lock lock(mutex_);
    woken_ = true;
    notify(lock);
  }

 private:
  void notify(std::unique_lock<std::mutex>& lock) {
    if (waiting_.empty()) return;
    auto latest = waiting_.back();
    lock.unlock();  // or who wakes would wait for it
    latest->notify_one();
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<std::condition_variable>> waiting_;
  std::vector<Completion> finished_;
  bool woken_ = false;
};

}  // namespace headrace
