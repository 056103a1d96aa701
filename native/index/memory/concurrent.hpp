// One writer beside lock-free readers: the discipline `Shared` of a map.
//
// The contract: one thread at a time changes the map, also by build, clear, configure and convert;
// any number of threads may at the same time get, scan, use cursors, and ask for min, max and size.
// verify and statistics belong to the writer. A map that others use is neither moved nor destroyed;
// one that was moved from is assigned to or destroyed, and not used otherwise.
//
// - Slots of nodes are read with acquire and written with release; what they lead to is complete.
// - Hashed and log leaves have room for an insert beside its present entries, and a value of
//   one word is replaced at once: readers see either state, and the writer writes nothing else.
// - Any other change of a leaf in place is made under a version, odd while it is written; a reader
//   that finds another version after than before reads again. Versions stand apart from leaves,
//   several leaves to one: a lookup then reads no other line of a leaf than it needs. Readers take
//   no lock, but of a leaf that is changed so without a pause they wait for one.
// - All words of leaves are atomic and have acquire or release themselves, in place of fences: a
//   reader that saw a word of a change sees the version of that change, too. Vector loads would be
//   data races, and are not used.
// - What is taken out of the tree is released when no reader can still see it (epochs.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "index/memory/epochs.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/pause.hpp"
#include "index/memory/sharing.hpp"

namespace headrace::index {

namespace detail {

// The widest word that all values of such size consist of.
template <std::size_t bytes>
using WordOf = std::conditional_t<
    bytes % 8 == 0, std::uint64_t,
    std::conditional_t<bytes % 4 == 0, std::uint32_t,
                       std::conditional_t<bytes % 2 == 0, std::uint16_t, std::uint8_t>>>;

}  // namespace detail

struct Shared {
  static constexpr bool kShared = true;
  // One store writes it.
  template <class Value>
  static constexpr bool kAtomicValue =
      value_bytes<Value> == 0 || sizeof(Value) == sizeof(detail::WordOf<sizeof(Value)>);

  static std::uint64_t load(const std::uint64_t* word) { return load_word(word); }
  static void store(std::uint64_t* word, std::uint64_t value) { store_word(word, value); }

  template <class Value>
  static void load_value(const Value* from, Value& to) {
    if constexpr (value_bytes<Value> != 0) {
      using Unit = detail::WordOf<sizeof(Value)>;
      std::array<Unit, sizeof(Value) / sizeof(Unit)> words;
      const auto* at = reinterpret_cast<const Unit*>(from);
      for (auto& word : words) word = load_word(at++);
      std::memcpy(static_cast<void*>(&to), words.data(), sizeof to);
    }
  }
  template <class Value>
  static void store_value(Value* to, const Value& from) {
    if constexpr (value_bytes<Value> != 0) {
      using Unit = detail::WordOf<sizeof(Value)>;
      std::array<Unit, sizeof(Value) / sizeof(Unit)> words;
      std::memcpy(words.data(), static_cast<const void*>(&from), sizeof from);
      auto* at = reinterpret_cast<Unit*>(to);
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
