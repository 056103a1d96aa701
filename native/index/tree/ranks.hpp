// Positions in order: how many entries have lower codes than one, and which entry has so many.
//
// Leaves know their counts. Sums of them, from the first leaf on, are made by one walk over the
// leaves and used until the map changes, so that of many positions asked in a row each reads one
// leaf alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "index/tree/neighbours.hpp"

namespace headrace::index {

namespace detail {

// Counts entries in place of keeping them.
struct EntryCount {
  std::size_t count = 0;
  template <class Value>
  void append_if(bool wanted, std::uint64_t, const Value&) {
    count += wanted;
  }
};

// Keeps the codes of entries alone; needs room for one more than there are.
struct CodeList {
  std::uint64_t* codes;
  std::size_t count = 0;
  template <class Value>
  void append_if(bool wanted, std::uint64_t code, const Value&) {
    codes[count] = code;
    count += wanted;
  }
};

}  // namespace detail

class LeafSums {
 public:
  // Of entries with codes below `code`.
  template <class Value, class Sharing, class Allocator>
  std::size_t rank(const Tree<Value, Sharing, Allocator>& tree, std::uint64_t code) {
    static_assert(!Sharing::kShared);
    update(tree);
    const auto i = static_cast<std::size_t>(
        std::lower_bound(last_codes_.begin(), last_codes_.end(), code) - last_codes_.begin());
    if (i == last_codes_.size()) return sums_.back();
    const Range range{i == 0 ? 0 : last_codes_[i - 1] + 1, last_codes_[i]};
    return sums_[i] + count_below(tree, tree.leaf(range.high), range, code);
  }

  // The entry with so many lower ones. False: the map has no more.
  template <class Value, class Sharing, class Allocator>
  bool select(const Tree<Value, Sharing, Allocator>& tree, std::size_t position,
              std::uint64_t& code, Value& value) {
    static_assert(!Sharing::kShared);
    update(tree);
    if (position >= sums_.back()) return false;
    const auto i = static_cast<std::size_t>(std::upper_bound(sums_.begin(), sums_.end(), position) -
                                            sums_.begin() - 1);
    const Range range{i == 0 ? 0 : last_codes_[i - 1] + 1, last_codes_[i]};
    select_in_leaf(tree, tree.leaf(range.high), range, position - sums_[i], code, value);
    return true;
  }

 private:
  template <class Value, class Sharing, class Allocator>
  void update(const Tree<Value, Sharing, Allocator>& tree) {
    if (version_ == tree.version()) return;
    version_.reset();  // if memory ends on the way
    last_codes_.clear();
    sums_.assign(1, 0);
    visit_up(tree, 0, [&](Word word, const Range& range) {
      last_codes_.push_back(range.high);
      sums_.push_back(sums_.back() + leaf_count<Value, Sharing>(word));
      return false;
    });
    version_ = tree.version();
  }

  // The entry with so many lower ones within its leaf.
  template <class Value, class Sharing, class Allocator>
  void select_in_leaf(const Tree<Value, Sharing, Allocator>& tree, Word word, const Range& range,
                      std::size_t within, std::uint64_t& code, Value& value) {
    with_leaf<Value, Sharing>(word, [&](auto leaf) {
      if constexpr (kHasPlaces<decltype(leaf)>) {
        const auto read = [&](const LeafOrder& order) {
          code = leaf.code_at(order.place(within));
          value = leaf.value_at(order.place(within));
        };
        if (tree.with_order(word, leaf, read)) return;
      }
      if constexpr (requires(detail::CodeList& to) { leaf.gather(code, to); }) {
        if (codes_.size() <= leaf.capacity()) codes_.resize(leaf.capacity() + 1);
        detail::CodeList list{codes_.data()};
        leaf.gather(range.low, list);
        std::nth_element(list.codes, list.codes + within, list.codes + list.count);
        code = list.codes[within];
        leaf.get(code, value);
      } else {
        EntryRun<Value, Allocator> run(tree.memory.allocator());
        run.read(tree, word, range, within + 1);
        code = run.code(within);
        value = run.value(within);
      }
    });
  }

  template <class Value, class Sharing, class Allocator>
  static std::size_t count_below(const Tree<Value, Sharing, Allocator>& tree, Word word,
                                 const Range& range, std::uint64_t code) {
    if (code == range.low) return 0;
    return with_leaf<Value, Sharing>(word, [&](auto leaf) -> std::size_t {
      if constexpr (requires(detail::EntryCount& to) { leaf.gather(code, to); }) {
        detail::EntryCount rest;
        leaf.gather(code, rest);
        return leaf.count() - rest.count;
      } else {
        EntryRun<Value, Allocator> run(tree.memory.allocator());
        run.read(tree, word, {range.low, code - 1}, ~std::size_t{0});
        return run.count();
      }
    });
  }

  std::optional<std::uint64_t> version_;   // of the map that the sums are of
  std::vector<std::uint64_t> last_codes_;  // of leaves, ascending
  std::vector<std::size_t> sums_ = {0};    // of entries before each leaf, and of all
  std::vector<std::uint64_t> codes_;       // of one leaf, in no order
};

}  // namespace headrace::index
