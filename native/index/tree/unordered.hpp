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

#include "index/memory/sharing.hpp"

namespace headrace::index {

namespace detail {

constexpr std::size_t kFewEntries = 16;

template <class Pair>
bool lower_code(const Pair& a, const Pair& b) {
  return a.first < b.first;
}

template <class Pair>
void sort_by_insertion(Pair* pairs, std::size_t count) {
  for (std::size_t i = 1; i < count; ++i) {
    const auto pair = pairs[i];
    auto at = i;
    for (; at > 0 && pair.first < pairs[at - 1].first; --at) pairs[at] = pairs[at - 1];
    pairs[at] = pair;
  }
}

}  // namespace detail

// Writes the lowest `most` of the pairs `pair(0)` to `pair(count - 1)` to `to`, sorted, or more of
// them; returns how many. `to` has room for `count`. Codes of one leaf are about evenly spread:
// equal parts of their range have a few each, so that little is left to be sorted.
template <class Pair, class PairOf>
std::size_t sort_lowest(std::size_t count, std::size_t most, const PairOf& pair, Pair* to) {
  if (count <= detail::kFewEntries) {
    for (std::size_t i = 0; i < count; ++i) new (to + i) Pair(pair(i));
    detail::sort_by_insertion(to, count);
    return count;
  }
  constexpr int kMostPartBits = 11;
  const auto part_bits = std::min(static_cast<int>(std::bit_width(count)), kMostPartBits);
  auto low = pair(0).first;
  auto high = low;
  for (std::size_t i = 1; i < count; ++i) {
    const auto code = pair(i).first;
    low = std::min(low, code);
    high = std::max(high, code);
  }
  const auto shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - part_bits);
  std::array<std::uint32_t, (1 << kMostPartBits) + 1> ends;
  const auto all = std::size_t{1} << part_bits;
  std::fill_n(ends.begin(), all + 1, 0U);
  for (std::size_t i = 0; i < count; ++i) ++ends[((pair(i).first - low) >> shift) + 1];
  std::size_t parts = 0;  // that are needed
  std::uint32_t largest = 0;
  for (; parts < all && ends[parts] < most; ++parts) {
    largest = std::max(largest, ends[parts + 1]);
    ends[parts + 1] += ends[parts];
  }
  const std::size_t needed = ends[parts];
  for (std::size_t i = 0; i < count; ++i) {
    const Pair each(pair(i));
    const auto part = (each.first - low) >> shift;
    if (part < parts) new (to + ends[part]++) Pair(each);
  }
  if (largest <= detail::kFewEntries) {
    detail::sort_by_insertion(to, needed);
    return needed;
  }
  // By now each part's end stands where its beginning was.
  for (std::size_t part = 0, begin = 0; part < parts; begin = ends[part++]) {
    const std::size_t end = ends[part];
    if (end - begin <= detail::kFewEntries) {
      detail::sort_by_insertion(to + begin, end - begin);
      continue;
    }
    const auto wanted = std::min(most, end);  // less than the last part, perhaps
    if (wanted < end) std::nth_element(to + begin, to + wanted, to + end, detail::lower_code<Pair>);
    std::sort(to + begin, to + wanted, detail::lower_code<Pair>);
    if (wanted < end) return wanted;
  }
  return needed;
}

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
  std::size_t count() const { return buffer_.count; }
  template <class LeafType>
  void gather(const LeafType& leaf, std::uint64_t from) {
    buffer_.count = 0;
    leaf.gather(from, buffer_);
  }
  // Codes, and as values the places of their entries.
  template <class LeafType>
  void gather_places(const LeafType& leaf) {
    buffer_.count = 0;
    leaf.gather_places(buffer_);
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
    const auto [sorted, count] = sort(most);
    const auto some = std::min(most, count);
    for (std::size_t i = 0; i < some; ++i) to.append(sorted[i].first, sorted[i].second);
    return some == buffer_.count;
  }
  // All, ascending.
  const Pair* sort_all() { return sort(buffer_.count).first; }

 private:
  // The lowest `most`, ascending, and how many are sorted.
  std::pair<const Pair*, std::size_t> sort(std::size_t most) {
    auto* const sorted = buffer_.pairs + most_;
    const auto count = sort_lowest(
        buffer_.count, most, [this](std::size_t i) { return buffer_.pairs[i]; }, sorted);
    return {sorted, count};
  }

  alignas(Pair) std::byte in_place_[kInPlace == 0 ? 1 : kInPlace * sizeof(Pair)];
  Memory memory_;
  std::size_t most_;
  Buffer buffer_{};
};

}  // namespace headrace::index
