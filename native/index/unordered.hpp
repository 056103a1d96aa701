// Entries of a leaf in no order, of which some are to be read in order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "index/sharing.hpp"

namespace headrace::index {

// Has room for `most` entries, and for as many to sort them by: in place, or from the allocator if
// they are many.
template <class Value, class Allocator>
class UnorderedEntries {
  using Pair = std::pair<std::uint64_t, Value>;
  using Memory = typename std::allocator_traits<Allocator>::template rebind_alloc<Pair>;
  static constexpr std::size_t kInPlace = 16'384 / sizeof(Pair);

  // What `gather` appends to; copied to a local variable, it stays in registers.
  struct Buffer {
    Pair* pairs;
    std::size_t count = 0;
    // Without a branch, which could not be predicted: one more pair is written than wanted.
    void append_if(bool wanted, std::uint64_t code, const Value& value) {
      new (pairs + count) Pair(code, value);
      count += wanted;
    }
  };

 public:
  UnorderedEntries(std::size_t most, const Allocator& allocator)
      : memory_(allocator), most_(most + 1) {
    auto* const first =
        2 * most_ <= kInPlace ? reinterpret_cast<Pair*>(in_place_) : memory_.allocate(2 * most_);
    buffer_.pairs = first;
  }
  UnorderedEntries(const UnorderedEntries&) = delete;
  UnorderedEntries& operator=(const UnorderedEntries&) = delete;
  ~UnorderedEntries() {
    if (2 * most_ > kInPlace) memory_.deallocate(buffer_.pairs, 2 * most_);
  }

  Pair* pairs() { return buffer_.pairs; }
  template <class LeafType>
  void gather(const LeafType& leaf, std::uint64_t from) {
    buffer_.count = 0;
    leaf.gather(from, buffer_);
  }

  // A leaf that was just split may still be found for a part of its codes; the others are found
  // again in the leaf that has them now.
  void drop_above(std::uint64_t last) {
    auto* const end = std::remove_if(buffer_.pairs, buffer_.pairs + buffer_.count,
                                     [last](const Pair& pair) { return pair.first > last; });
    buffer_.count = static_cast<std::size_t>(end - buffer_.pairs);
  }

  // Appends the lowest `most`, ascending. Returns whether these are all.
  bool append_lowest(std::size_t most, EntryBuffer<Value>& to) {
    auto* pairs = buffer_.pairs;
    auto count = buffer_.count;
    if (count > kFew) {
      pairs += most_;
      count = distribute(most, pairs);
    } else {
      sort_by_insertion(pairs, count);
    }
    const auto some = std::min(most, count);
    for (std::size_t i = 0; i < some; ++i) to.append(pairs[i].first, pairs[i].second);
    return some == buffer_.count;
  }

 private:
  static constexpr std::size_t kFew = 16;
  static constexpr int kPartBits = 8;
  static constexpr std::size_t kParts = 1 << kPartBits;

  static bool lower(const Pair& a, const Pair& b) { return a.first < b.first; }

  // Writes the lowest `most` to `to`, or some more, sorted; returns how many. Codes of one leaf are
  // about evenly spread: parts of their range have a few entries each, so that little is left to be
  // sorted.
  std::size_t distribute(std::size_t most, Pair* to) const {
    const auto* const pairs = buffer_.pairs;
    const auto count = buffer_.count;
    auto low = pairs[0].first;
    auto high = low;
    for (std::size_t i = 1; i < count; ++i) {
      low = std::min(low, pairs[i].first);
      high = std::max(high, pairs[i].first);
    }
    const auto bits = static_cast<int>(std::bit_width(high - low));
    const auto shift = std::max(0, bits - kPartBits);
    std::array<std::uint32_t, kParts + 1> ends{};
    for (std::size_t i = 0; i < count; ++i) ++ends[((pairs[i].first - low) >> shift) + 1];
    std::uint32_t largest = 0;
    std::size_t parts = 0;  // that are needed
    while (parts < kParts && ends[parts] < most) {
      largest = std::max(largest, ends[parts + 1]);
      ends[parts + 1] += ends[parts];
      ++parts;
    }
    const auto needed = ends[parts];
    for (std::size_t i = 0; i < count; ++i) {
      const auto part = (pairs[i].first - low) >> shift;
      if (part < parts) new (to + ends[part]++) Pair(pairs[i]);
    }
    if (largest <= kFew) {
      sort_by_insertion(to, needed);
      return needed;
    }
    const auto wanted = std::min<std::size_t>(most, needed);
    if (wanted < needed) std::nth_element(to, to + wanted, to + needed, lower);
    std::sort(to, to + wanted, lower);
    return wanted;
  }

  static void sort_by_insertion(Pair* pairs, std::size_t count) {
    for (std::size_t i = 1; i < count; ++i) {
      const auto pair = pairs[i];
      auto at = i;
      for (; at > 0 && pair.first < pairs[at - 1].first; --at) pairs[at] = pairs[at - 1];
      pairs[at] = pair;
    }
  }

  alignas(Pair) std::byte in_place_[kInPlace * sizeof(Pair)];
  Memory memory_;
  std::size_t most_;
  Buffer buffer_{};
};

}  // namespace headrace::index
