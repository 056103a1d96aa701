// A lock that is held for about a lookup's time: a waiting thread tries again for some microseconds
// before it sleeps, which alone would take longer.
#pragma once

#include <atomic>
#include <cstdint>

#include "index/memory/pause.hpp"

namespace headrace::index::detail {

// Meets BasicLockable: for std::lock_guard.
class BriefLock {
 public:
  void lock() {
    std::uint32_t found = kFree;
    if (state_.compare_exchange_strong(found, kTaken, std::memory_order_acquire)) return;
    for (int tries = 0; tries < kTries; ++tries) {
      pause();
      if (state_.load(std::memory_order_relaxed) != kFree) continue;
      found = kFree;
      if (state_.compare_exchange_strong(found, kTaken, std::memory_order_acquire)) return;
    }
    // Unlocking has to wake one that sleeps from here on.
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) state_.wait(kAwaited);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr int kTries = 200;  // about ten changes of a leaf
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kTaken = 1;
  static constexpr std::uint32_t kAwaited = 2;
  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace headrace::index::detail
