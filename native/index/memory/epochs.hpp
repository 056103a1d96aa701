// Epochs: what a writer takes out of a structure is released when no reader can still see it.
//
// A reader announces the epoch in which it began, in an entry of its thread's own; the writer
// counts epochs, and releases what was retired before the oldest one announced. Between announcing
// and reading a barrier is needed, which keeps a reader's lookups from overlapping. So, where Linux
// has `membarrier`, the writer makes all threads pass one, once for many blocks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/memory/memory.hpp"
#include "index/memory/pause.hpp"
#include "process.hpp"

#if defined(__linux__) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HEADRACE_MEMBARRIER 1
#endif

namespace headrace::index::detail {

// Barriers of all threads of the process, made by one of them.
class ProcessBarrier {
 public:
  // False: threads have to make their own.
  static bool available() {
#if defined(HEADRACE_MEMBARRIER)
    // No local static: a child that is forked while another thread initializes it would wait for
    // it.
    auto state = state_.load(std::memory_order_relaxed);
    if (state == State::unknown) {
      state = call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) ? State::available : State::absent;
      state_.store(state, std::memory_order_relaxed);
    }
    return state == State::available;
#else
    return false;
#endif
  }
  // False: the system has refused it.
  static bool pass() {
#if defined(HEADRACE_MEMBARRIER)
    return !available() || call(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
#else
    return true;
#endif
  }

 private:
#if defined(HEADRACE_MEMBARRIER)
  enum class State : std::uint8_t { unknown, available, absent };
  static bool call(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }
  inline static constinit std::atomic<State> state_{State::unknown};
#endif
};

// Numbers of threads, from 0 on; one that a thread had is free again when that has ended.
class ThreadNumber {
 public:
  static constexpr std::size_t kNumbers = 128;

  // Of the calling thread; kNumbers if it has none.
  static std::size_t get() {
    if (number_ == kUnset) take();
    return number_;
  }
  // In a child: the numbers of the threads that it lacks are free. Returns that of the caller, as
  // it is: kNumbers if it has none, more if it never asked.
  static std::size_t free_others() noexcept {
    for (std::size_t word = 0; word < taken_.size(); ++word) {
      taken_[word] = number_ / 64 == word ? std::uint64_t{1} << number_ % 64 : 0;
    }
    return number_;
  }

 private:
  static constexpr std::size_t kUnset = kNumbers + 1;
  struct Release {
    ~Release() {
      const auto number = number_;
      number_ = kNumbers;
      if (number < kNumbers) {
        taken_[number / 64].fetch_and(~(std::uint64_t{1} << number % 64));
      }
    }
  };

  static void take() {
    thread_local const Release release;
    static_cast<void>(release);
    number_ = kNumbers;
    for (std::size_t word = 0; word < taken_.size(); ++word) {
      for (auto bits = taken_[word].load(); ~bits != 0;) {
        const auto bit = std::countr_one(bits);
        if (!taken_[word].compare_exchange_weak(bits, bits | std::uint64_t{1} << bit)) continue;
        number_ = word * 64 + static_cast<std::size_t>(bit);
        return;
      }
    }
  }

  inline static std::array<std::atomic<std::uint64_t>, kNumbers / 64> taken_{};
  inline static thread_local std::size_t number_ = kUnset;
};

class Epochs final : public ForkListener {
  // The thread with a number has the entry with that number; threads without one share the rest,
  // and if there are more of these at once, some wait.
  static constexpr std::size_t kShared = 16;
  static constexpr std::size_t kEntries = ThreadNumber::kNumbers + kShared;
  struct alignas(kLineBytes) Entry {
    std::atomic<std::uint64_t> epoch{0};  // 0: of no reader
    std::uint64_t pins = 0;               // one inside of the other
  };

 public:
  // Announces a reader, of the thread that makes it, until it is destroyed.
  class Pin {
   public:
    explicit Pin(Epochs& epochs) {
      const auto number = ThreadNumber::get();
      if (number == ThreadNumber::kNumbers) {
        entry_ = epochs.take_shared();
      } else {
        entry_ = &epochs.entries_[number];
      }
      if (entry_->pins++ != 0) return;
      const auto epoch = epochs.epoch_.load(std::memory_order_relaxed);
      // The writer counts an epoch between taking a block out and looking at the entries. If it did
      // not see this one, this sees its count, and so that the block is out.
      if (ProcessBarrier::available()) {
        entry_->epoch.store(epoch, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      } else {
        entry_->epoch.exchange(epoch);
      }
      epochs.epoch_.load();
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() {
      if (--entry_->pins == 0) entry_->epoch.store(0, std::memory_order_release);
    }

   private:
    Entry* entry_;
  };

  // No reader but the forking thread's own: others would hold back what is retired for ever.
  void after_fork_in_child() noexcept override {
    const auto own = ThreadNumber::free_others();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const bool owned = own < ThreadNumber::kNumbers
                             ? i == own
                             : own == ThreadNumber::kNumbers && i >= ThreadNumber::kNumbers;
      if (owned) continue;
      entries_[i].epoch = 0;
      entries_[i].pins = 0;
    }
  }

  void expect(std::size_t blocks) {
    const auto needed = retired_.size() + blocks;
    if (needed > retired_.capacity()) retired_.reserve(std::bit_ceil(needed));
  }

  void retire(Line* block, std::size_t lines) noexcept {
    retired_.push_back({block, lines, epoch_.load(std::memory_order_relaxed)});
  }

  // Releases what no reader can see, if there are `least` blocks.
  template <class Arena>
  void reclaim(Arena& arena, std::size_t least) noexcept {
    if (retired_.empty() || retired_.size() < least) return;
    auto oldest = epoch_.fetch_add(1) + 1;
    if (!ProcessBarrier::pass()) return;
    for (const auto& entry : entries_) {
      const auto epoch = entry.epoch.load();
      if (epoch != 0) oldest = std::min(oldest, epoch);
    }
    std::size_t done = 0;
    for (; done < retired_.size() && retired_[done].epoch < oldest; ++done) {
      arena.release(retired_[done].block, retired_[done].lines);
    }
    retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(done));
  }

 private:
  struct Retired {
    Line* block;
    std::size_t lines;
    std::uint64_t epoch;
  };

  Entry* take_shared() {
    for (std::size_t i = 0;; i = (i + 1) % kShared) {
      auto& entry = entries_[ThreadNumber::kNumbers + i];
      std::uint64_t none = 0;
      if (entry.epoch.compare_exchange_strong(none, epoch_.load())) return &entry;
      if (i + 1 == kShared) pause();
    }
  }

  alignas(kLineBytes) std::atomic<std::uint64_t> epoch_{1};
  std::array<Entry, kEntries> entries_;
  std::vector<Retired> retired_;
};

}  // namespace headrace::index::detail
