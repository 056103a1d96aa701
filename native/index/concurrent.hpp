// One writer beside lock-free readers: the discipline `Shared` of a map.
//
// The contract: one thread at a time changes the map, also by build, clear, configure and convert;
// any number of threads may at the same time get, scan, use cursors, and ask for min, max and size.
// verify and statistics belong to the writer. A map that others use is neither moved nor destroyed.
//
// - Slots of nodes are read with acquire and written with release; what they lead to is complete.
// - A leaf is changed in place under a version, odd while it is written; a reader that finds
//   another version after than before reads again. Versions stand apart from leaves, several
//   leaves to one: a lookup then reads no other line of a leaf than it needs.
// - All words of leaves are atomic and have acquire or release themselves, in place of fences: a
//   reader that saw a word of a change sees the version of that change, too. Vector loads would be
//   data races, and are not used.
// - What is taken out of the tree is released when no reader can still see it. A reader announces
//   the epoch in which it began, in an entry of its own; the writer counts epochs, and releases
//   what was retired before the oldest one announced.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "index/memory.hpp"
#include "index/sharing.hpp"

namespace headrace::index {

namespace detail {

// Number of the calling thread, so that threads begin their search for an entry apart.
inline std::size_t thread_number() {
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The widest word that all values of such size consist of.
template <std::size_t bytes>
using WordOf = std::conditional_t<
    bytes % 8 == 0, std::uint64_t,
    std::conditional_t<bytes % 4 == 0, std::uint32_t,
                       std::conditional_t<bytes % 2 == 0, std::uint16_t, std::uint8_t>>>;

// Epochs of readers and of retired blocks.
class Epochs {
 public:
  // Announces a reader until it is destroyed.
  class Pin {
   public:
    explicit Pin(Epochs& epochs) {
      auto entry = thread_number() % kEntries;
      for (;; entry = (entry + 1) % kEntries) {  // taken: nested, or by a thread of like number
        std::uint64_t none = 0;
        const auto epoch = epochs.epoch_.load(std::memory_order_relaxed);
        entry_ = &epochs.entries_[entry].epoch;
        if (entry_->compare_exchange_strong(none, epoch)) break;
      }
      // The writer counts an epoch between taking a block out and looking at the entries. If it did
      // not see this one, this sees its count, and so that the block is out.
      epochs.epoch_.load();
    }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() { entry_->store(0, std::memory_order_release); }

   private:
    std::atomic<std::uint64_t>* entry_;
  };

  void expect(std::size_t blocks) { retired_.reserve(retired_.size() + blocks); }

  void retire(Line* block, std::size_t lines) noexcept {
    retired_.push_back({block, lines, epoch_.load(std::memory_order_relaxed)});
  }

  template <class Arena>
  void reclaim(Arena& arena, std::size_t least) noexcept {
    if (retired_.empty() || retired_.size() < least) return;
    auto oldest = epoch_.fetch_add(1) + 1;
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
  static constexpr std::size_t kEntries = 128;  // more readers at once wait for one
  struct alignas(kLineBytes) Entry {
    std::atomic<std::uint64_t> epoch{0};
  };
  struct Retired {
    Line* block;
    std::size_t lines;
    std::uint64_t epoch;
  };
  alignas(kLineBytes) std::atomic<std::uint64_t> epoch_{1};
  std::array<Entry, kEntries> entries_;
  std::vector<Retired> retired_;
};

}  // namespace detail

struct Shared {
  static constexpr bool kShared = true;

  static std::uint64_t load(const std::uint64_t* word) { return load_word(word); }
  static void store(std::uint64_t* word, std::uint64_t value) { store_word(word, value); }

  template <class Value>
  static void load_value(const Value* from, Value& to) {
    if constexpr (value_bytes<Value> != 0) {
      using Word = detail::WordOf<sizeof(Value)>;
      std::array<Word, sizeof(Value) / sizeof(Word)> words;
      const auto* at = reinterpret_cast<const Word*>(from);
      for (auto& word : words) word = load_word(at++);
      std::memcpy(static_cast<void*>(&to), words.data(), sizeof to);
    }
  }
  template <class Value>
  static void store_value(Value* to, const Value& from) {
    if constexpr (value_bytes<Value> != 0) {
      using Word = detail::WordOf<sizeof(Value)>;
      std::array<Word, sizeof(Value) / sizeof(Word)> words;
      std::memcpy(words.data(), static_cast<const void*>(&from), sizeof from);
      auto* at = reinterpret_cast<Word*>(to);
      for (const auto word : words) store_word(at++, word);
    }
  }

  class State {
   public:
    State() : body_(std::make_unique<Body>()) {}

    using Pin = detail::Epochs::Pin;
    Pin pin() const { return Pin(body_->epochs); }

    template <class Action>
    void read(const void* leaf, Action&& action) const {
      const auto& version = version_of(leaf);
      for (;;) {
        const auto before = version.load(std::memory_order_acquire);
        if (before % 2 == 0) {
          action();
          // Not before the loads of the action, which acquire.
          if (version.load(std::memory_order_relaxed) == before) return;
        }
        detail::pause();
      }
    }

    template <class Action>
    decltype(auto) write(const void* leaf, Action&& action) {
      const Writing writing(version_of(leaf));
      return action();
    }

    void expect(std::size_t blocks) { body_->epochs.expect(blocks); }
    template <class Arena>
    void retire(Arena&, Line* block, std::size_t lines) noexcept {
      body_->epochs.retire(block, lines);
    }
    // Before changes of structure: many blocks at once, as all readers' entries are read.
    template <class Arena>
    void reclaim(Arena& arena) noexcept {
      body_->epochs.reclaim(arena, 64);
    }
    template <class Arena>
    void reclaim_all(Arena& arena) noexcept {
      if (body_ != nullptr) body_->epochs.reclaim(arena, 1);
    }

   private:
    static constexpr std::size_t kVersions = 512;
    using Version = std::atomic<std::uint64_t>;
    struct alignas(kLineBytes) Stripe {
      Version version{0};
    };
    struct Body {
      std::array<Stripe, kVersions> stripes;
      detail::Epochs epochs;
    };

    // The leaf's words are released: none of them is seen before the odd version.
    class Writing {
     public:
      explicit Writing(Version& version)
          : version_(version), before_(version.load(std::memory_order_relaxed)) {
        version_.store(before_ + 1, std::memory_order_relaxed);
      }
      Writing(const Writing&) = delete;
      Writing& operator=(const Writing&) = delete;
      ~Writing() { version_.store(before_ + 2, std::memory_order_release); }

     private:
      Version& version_;
      std::uint64_t before_;
    };

    Version& version_of(const void* leaf) const {
      const auto line = reinterpret_cast<std::uintptr_t>(leaf) / kLineBytes;
      return body_->stripes[(line * 0x9e37'79b9'7f4a'7c15) >> 55].version;
    }

    std::unique_ptr<Body> body_;
  };

 private:
  template <class Word>
  static Word load_word(const Word* word) {
    return std::atomic_ref<Word>(*const_cast<Word*>(word)).load(std::memory_order_acquire);
  }
  template <class Word>
  static void store_word(Word* word, Word value) {
    std::atomic_ref<Word>(*word).store(value, std::memory_order_release);
  }
};

}  // namespace headrace::index
