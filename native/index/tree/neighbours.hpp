// Entries by order: the nearest one to a code, and the entries of a leaf as a run in order.
//
// Nothing is written, so any number of threads may read a map that none changes, and, of shared
// maps, beside their writer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "index/tree/tree.hpp"
#include "index/tree/unordered.hpp"

namespace headrace::index {

// Calls `visit(word, range)` for the leaf of the code `from` and the leaves above it, ascending,
// until it returns true; `range` is from `from`, or the leaf's first code, to the leaf's last one.
// False: it never did.
template <class Value, class Sharing, class Allocator, class Visit>
bool visit_up(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t from, const Visit& visit) {
  for (Range range{from, 0};; range.low = range.high + 1) {
    [[maybe_unused]] const auto pin = tree.state.pin();
    const auto word = tree.leaf(range.low, range.high);
    if (!word.none() && visit(word, range)) return true;
    if (range.high == ~std::uint64_t{0}) return false;
  }
}

// The same downwards: `range` is from the leaf's first code to `from`, or the leaf's last one.
template <class Value, class Sharing, class Allocator, class Visit>
bool visit_down(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t from,
                const Visit& visit) {
  for (Range range{0, from};; range.high = range.low - 1) {
    [[maybe_unused]] const auto pin = tree.state.pin();
    const auto word = tree.leaf_from(range.high, range.low);
    if (!word.none() && visit(word, range)) return true;
    if (range.low == 0) return false;
  }
}

namespace detail {

// Of entries in no order, the one with the lowest code of a range, or the highest.
template <class Value, bool kLowest>
struct NearestEntry {
  Range range;
  std::uint64_t code = kLowest ? range.high : range.low;
  Value value{};
  bool any = false;

  // One comparison: distances of codes that are outside of the range wrap around.
  void append_if(bool wanted, std::uint64_t candidate, const Value& its_value) {
    const bool nearer = kLowest ? candidate - range.low <= code - range.low
                                : range.high - candidate <= range.high - code;
    if (wanted & nearer) {
      code = candidate;
      value = its_value;
      any = true;
    }
  }
};

}  // namespace detail

// The entries of a leaf, ascending, with codes of a range: all, or the lowest `most`.
template <class Value, class Allocator>
class EntryRun {
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  explicit EntryRun(const Allocator& allocator) : codes_(allocator), values_(allocator) {}

  std::size_t count() const { return entries_.count; }
  std::uint64_t code(std::size_t i) const { return entries_.codes[i]; }
  Value value(std::size_t i) const { return Entries<Value>(entries_).value(i); }

  // `last`: the leaf's last code, or a lower one. A leaf that was just split may still be found
  // for a part of its codes; the others are found again in the leaf that has them by then.
  template <class Sharing>
  void read(const Tree<Value, Sharing, Allocator>& tree, Word word, const Range& range,
            std::size_t most) {
    with_leaf<Value, Sharing>(word, [&](auto leaf) {
      most = std::min(most, leaf.capacity());
      reserve(leaf.capacity());
      entries_.count = 0;
      if constexpr (kInOrder<Value, decltype(leaf)>) {
        tree.state.read(word.to(), [&] {
          entries_.count = 0;
          leaf.scan(range.low, most, entries_);
        });
        while (entries_.count > 0 && entries_.codes[entries_.count - 1] > range.high) {
          --entries_.count;
        }
      } else {
        UnorderedEntries<Value, Allocator> unordered(leaf.capacity(), tree.memory.allocator());
        tree.state.read(word.to(), [&] { unordered.gather(leaf, range.low); });
        unordered.drop_above(range.high);
        unordered.append_lowest(most, entries_);
      }
    });
  }

 private:
  void reserve(std::size_t count) {
    if (codes_.size() < count) {
      codes_.resize(count);
      if constexpr (value_bytes<Value> != 0) values_.resize(count);
    }
    entries_ = {codes_.data(), value_array<Value>(values_), 0};
  }

  Vector<std::uint64_t> codes_;
  Vector<Element<Value>> values_;
  EntryBuffer<Value> entries_;
};

// The entry of a leaf with the lowest code of a range, or the highest. False: there is none.
template <bool kLowest, class Value, class Sharing, class Allocator>
bool nearest_in_leaf(const Tree<Value, Sharing, Allocator>& tree, Word word, const Range& range,
                     std::uint64_t& code, Value& value) {
  return with_leaf<Value, Sharing>(word, [&](auto leaf) {
    using Nearest = detail::NearestEntry<Value, kLowest>;
    if constexpr (requires { leaf.template nearest<kLowest>(range.low, range.high, code); }) {
      bool any = false;
      std::uint64_t nearest = 0;
      tree.state.read(word.to(), [&] {
        any = leaf.template nearest<kLowest>(range.low, range.high, nearest) &&
              leaf.get(nearest, value);
      });
      if (any) code = nearest;
      return any;
    } else if constexpr (requires(Nearest& to) { leaf.gather(0, to); }) {
      Nearest nearest{range};
      tree.state.read(word.to(), [&] {
        nearest = {range};
        leaf.gather(range.low, nearest);
      });
      if (nearest.any) {
        code = nearest.code;
        value = nearest.value;
      }
      return nearest.any;
    } else {
      EntryRun<Value, Allocator> run(tree.memory.allocator());
      run.read(tree, word, range, kLowest ? 1 : leaf.capacity());
      if (run.count() == 0) return false;
      const auto i = kLowest ? 0 : run.count() - 1;
      code = run.code(i);
      value = run.value(i);
      return true;
    }
  });
}

// The entry with the lowest code from `from` on. False: there is none.
template <class Value, class Sharing, class Allocator>
bool ceiling(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t from, std::uint64_t& code,
             Value& value) {
  return visit_up(tree, from, [&](Word word, const Range& range) {
    return nearest_in_leaf<true>(tree, word, range, code, value);
  });
}

// The entry with the highest code up to `from`. False: there is none.
template <class Value, class Sharing, class Allocator>
bool floor(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t from, std::uint64_t& code,
           Value& value) {
  return visit_down(tree, from, [&](Word word, const Range& range) {
    return nearest_in_leaf<false>(tree, word, range, code, value);
  });
}

// Up to `most` entries in descending order from `from` down; returns how many.
template <class Value, class Sharing, class Allocator>
std::size_t scan_down(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t from,
                      std::size_t most, std::uint64_t* codes, Value* values) {
  EntryBuffer<Value> to{codes, values, 0};
  if (most == 0) return 0;
  EntryRun<Value, Allocator> run(tree.memory.allocator());
  visit_down(tree, from, [&](Word word, const Range& range) {
    run.read(tree, word, range, ~std::size_t{0});
    for (auto i = run.count(); i-- > 0 && to.count < most;) to.append(run.code(i), run.value(i));
    return to.count == most;
  });
  return to.count;
}

}  // namespace headrace::index
