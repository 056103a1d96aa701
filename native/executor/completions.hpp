// Finished tasks on their way to whoever asked to be told; shared by the executors of a process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
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

class Completions {
 public:
  void push(Completion completion) {
    {
      std::lock_guard lock(mutex_);
      finished_.push_back(std::move(completion));
    }
    condition_.notify_one();
  }

  // All that have finished since the last call; waits for the first one.
  std::vector<Completion> take(std::chrono::duration<double> timeout) {
    if (!(timeout.count() >= 0)) throw std::invalid_argument("a negative timeout, or none");
    timeout = std::min(timeout, std::chrono::duration<double>(1e9));
    std::unique_lock lock(mutex_);
    condition_.wait_for(lock, timeout, [this] { return !finished_.empty() || woken_; });
    woken_ = false;
    return std::exchange(finished_, {});
  }

  // Makes a waiting `take` return at once.
  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    condition_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::vector<Completion> finished_;
  bool woken_ = false;
};

}  // namespace headrace
