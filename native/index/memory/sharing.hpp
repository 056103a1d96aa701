// The two disciplines of access: one thread at a time, or one writer beside lock-free readers.
//
// Every word that a reader may see while it is written goes through `load` and `store`. In
// exclusive maps these are plain; in shared ones (concurrent.hpp) they are atomic, with acquire and
// release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "index/memory/memory.hpp"

namespace headrace::index {

// Value of a set: takes no memory.
struct Nothing {
  friend bool operator==(Nothing, Nothing) = default;
};

template <class Value>
constexpr std::size_t value_bytes = std::is_empty_v<Value> ? 0 : sizeof(Value);

// What vectors of values have as elements: of bool itself they would have bits, and no array.
template <class Value>
using Element = std::conditional_t<std::is_same_v<Value, bool>, unsigned char, Value>;
template <class Value, class Vector>
Value* value_array(Vector& elements) {
  return reinterpret_cast<Value*>(elements.data());
}

// Arrays of codes and values side by side; values of empty types are never read or written.
template <class Value>
struct Entries {
  const std::uint64_t* codes = nullptr;
  const Value* values = nullptr;
  std::size_t count = 0;

  Value value(std::size_t i) const {
    if constexpr (value_bytes<Value> != 0) {
      return values[i];
    } else {
      return Value{};
    }
  }
  Entries part(std::size_t first, std::size_t end) const {
    return {codes + first, value_bytes<Value> != 0 ? values + first : values, end - first};
  }
};

// The same to write to; `append` needs room.
template <class Value>
struct EntryBuffer {
  std::uint64_t* codes = nullptr;
  Value* values = nullptr;
  std::size_t count = 0;

  void append(std::uint64_t code, const Value& value) {
    codes[count] = code;
    if constexpr (value_bytes<Value> != 0) values[count] = value;
    ++count;
  }
  void append_if(bool wanted, std::uint64_t code, const Value& value) {
    if (wanted) append(code, value);
  }
  operator Entries<Value>() const { return {codes, values, count}; }
};

// Effect of an operation on a leaf.
enum class Outcome : std::uint8_t {
  done,     // inserted or erased
  present,  // the key was there: not inserted
  absent,   // the key was not there: not erased
  full,     // no room for it: nothing changed
  sparse,   // erased, and the leaf takes far more memory than its keys need
};

struct Exclusive {
  static constexpr bool kShared = false;
  template <class Value>
  static constexpr bool kAtomicValue = true;  // no reader sees it while it is written

  static std::uint64_t load(const std::uint64_t* word) { return *word; }
  static void store(std::uint64_t* word, std::uint64_t value) { *word = value; }
  template <class Value>
  static void load_value(const Value* from, Value& to) {
    if constexpr (value_bytes<Value> != 0) std::memcpy(&to, from, sizeof to);
  }
  template <class Value>
  static void store_value(Value* to, const Value& from) {
    if constexpr (value_bytes<Value> != 0) std::memcpy(to, &from, sizeof from);
  }

  // State of one map.
  class State {
   public:
    struct Pin {};
    Pin pin() const { return {}; }  // while it lives, no block that a reader can see is released
    template <class Action>
    void read(const void*, Action&& action) const {  // `action` again until nothing was written
      action();
    }
    template <class Action>
    decltype(auto) write(const void*, Action&& action) {
      return action();
    }
    // Blocks taken out of the tree are released once no reader can see them; `expect` makes room
    // for that many, so that `retire` cannot fail.
    void expect(std::size_t) {}
    template <class Arena>
    void retire(Arena& arena, Line* block, std::size_t lines) noexcept {
      arena.release(block, lines);
    }
    template <class Arena>
    void reclaim(Arena&) noexcept {}
    template <class Arena>
    void reclaim_all(Arena&) noexcept {}
  };
};

}  // namespace headrace::index
