// Words of the tree: what a slot of an inner node holds.
//
// One word has the address of a child, its type and, of leaves, their size, so that a lookup knows
// where in a leaf to look without reading a header of the leaf.
#pragma once

#include <cstdint>

#include "index/configuration.hpp"
#include "index/memory/memory.hpp"

namespace headrace::index {

enum class Kind : std::uint8_t {
  none = 0,  // an empty leaf without memory
  gapped = 1,
  log = 2,
  hashed = 3,
  perfect = 4,
  linear = 8,
  comparison = 9,
};

inline Leaf leaf_of(Kind kind) { return static_cast<Leaf>(static_cast<int>(kind) - 1); }

// Bits 0 to 3: the kind; 4: empty entries of the leaf are marked by the highest code instead of 0;
// 6 to 47: address (of lines, so its lower bits are 0); 48 to 63: size, in the leaf type's unit.
class Word {
 public:
  static constexpr std::uint32_t kMostUnits = 0xffff;

  constexpr Word() = default;
  explicit constexpr Word(std::uint64_t bits) : bits_(bits) {}
  Word(const Line* lines, Kind kind, std::uint32_t units = 0, bool high_empty = false)
      : bits_(reinterpret_cast<std::uintptr_t>(lines) | static_cast<std::uint64_t>(kind) |
              (high_empty ? kHighEmpty : 0) | static_cast<std::uint64_t>(units) << 48) {}

  std::uint64_t bits() const { return bits_; }
  Kind kind() const { return static_cast<Kind>(bits_ & 15); }
  bool inner() const { return bits_ & 8; }
  bool none() const { return bits_ == 0; }
  std::uint32_t units() const { return static_cast<std::uint32_t>(bits_ >> 48); }
  template <class T = Line>
  T* to() const {
    return reinterpret_cast<T*>(bits_ & kAddress);
  }
  // The code that marks an empty entry: one that cannot be a key of this leaf. Only the leftmost
  // leaf may have the key 0, and it is never also the rightmost one.
  bool high_empty() const { return bits_ & kHighEmpty; }
  std::uint64_t empty_code() const { return std::uint64_t{0} - (bits_ >> 4 & 1); }
  friend bool operator==(Word, Word) = default;

 private:
  static constexpr std::uint64_t kHighEmpty = 16;
  static constexpr std::uint64_t kAddress = 0x0000'ffff'ffff'ffc0;
  std::uint64_t bits_ = 0;
};

}  // namespace headrace::index
