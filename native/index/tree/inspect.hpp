// What a map reports about itself, and the check of all its invariants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/tree/tree.hpp"

namespace headrace::index {

template <class Value, class Sharing, class Allocator>
class Inspector {
  using Map = Tree<Value, Sharing, Allocator>;

 public:
  explicit Inspector(const Map& tree) : tree_(tree) {}

  Statistics statistics() {
    auto result = tree_.statistics;
    result.size = tree_.size();
    result.bytes = tree_.bytes();
    count(tree_.root(), 0, result);
    if (tree_.size() != 0) result.mean_depth /= static_cast<double>(tree_.size());
    return result;
  }

  // Throws std::logic_error naming the node and what is broken.
  void verify() {
    if (tree_.root().none()) {
      if (tree_.size() != 0) fail(Word(), {}, "an empty tree has keys");
      return;
    }
    if (!tree_.root().inner()) fail(tree_.root(), {}, "the root is a leaf");
    std::size_t keys = 0;
    check(tree_.root(), {}, keys);
    if (keys != tree_.size()) {
      std::ostringstream text;
      text << "its leaves have " << keys << " keys, its size is " << tree_.size();
      fail(tree_.root(), {}, text.str());
    }
    std::sort(leaves_.begin(), leaves_.end());
    tree_.each_order([this](const LeafOrder& order) { check_order(order); });
  }

 private:
  static void count(Word word, std::size_t depth, Statistics& result) {
    if (word.none()) return;
    if (word.inner()) {
      ++result.inner_nodes;
      result.comparison_nodes += word.kind() == Kind::comparison;
      result.slots += slot_count(word);
      Map::each_child(
          word, [&](Word child, std::uint32_t, std::uint32_t) { count(child, depth + 1, result); });
      return;
    }
    const auto keys = leaf_count<Value, Sharing>(word);
    const auto type = static_cast<std::size_t>(leaf_of(word.kind()));
    ++result.leaves[type];
    result.leaf_bytes += leaf_lines<Value, Sharing>(word) * kLineBytes;
    result.keys[type] += keys;
    result.depth = std::max(result.depth, depth);
    result.mean_depth += static_cast<double>(depth * keys);
  }

  void check(Word word, const Range& range, std::size_t& keys) {
    if (range.low > range.high) fail(word, range, "its range of codes is empty");
    if (word.none()) return;
    if (word.inner()) return check_node(word, range, keys);
    if (word.high_empty() != (range.low == 0)) fail(word, range, "wrong mark of empty entries");
    if (range.low == 0 && range.high == ~std::uint64_t{0}) {
      fail(word, range, "a leaf has both the lowest and the highest code");
    }
    leaves_.push_back(word.bits());
    with_leaf<Value, Sharing>(word, [&](auto leaf) {
      if (const char* what = leaf.broken(); what != nullptr) fail(word, range, what);
      check_codes(word, leaf, range);
      keys += leaf.count();
    });
  }

  template <class LeafType>
  void check_codes(Word word, const LeafType& leaf, const Range& range) {
    std::vector<std::uint64_t> codes(leaf.capacity());
    std::vector<Element<Value>> values(leaf.capacity());
    EntryBuffer<Value> entries{codes.data(), value_array<Value>(values), 0};
    leaf.gather(0, entries);
    if (entries.count != leaf.count()) fail(word, range, "its count is wrong");
    std::sort(entries.codes, entries.codes + entries.count);
    for (std::size_t i = 0; i < entries.count; ++i) {
      if (entries.codes[i] < range.low || entries.codes[i] > range.high) {
        fail(word, range, "code " + std::to_string(entries.codes[i]) + " is outside of its range");
      }
      if (i > 0 && entries.codes[i] == entries.codes[i - 1]) {
        fail(word, range, "code " + std::to_string(entries.codes[i]) + " occurs twice");
      }
    }
  }

  void check_order(const LeafOrder& order) {
    const auto word = order.leaf();
    if (!std::binary_search(leaves_.begin(), leaves_.end(), word.bits())) {
      fail(word, {}, "an order is kept of a leaf that has ended");
    }
    with_leaf<Value, Sharing>(word, [&](auto leaf) {
      if constexpr (kHasPlaces<decltype(leaf)>) {
        if (order.count() != leaf.count()) fail(word, {}, "its order has another count");
        for (std::size_t i = 0; i < order.count(); ++i) {
          const auto code = leaf.code_at(order.place(i));
          Value unused{};
          if (!leaf.get(code, unused) || (i > 0 && leaf.code_at(order.place(i - 1)) >= code)) {
            fail(word, {}, "its order is none");
          }
        }
      }
    });
  }

  void check_node(Word word, const Range& range, std::size_t& keys) {
    if (word.kind() == Kind::linear) {
      const auto& model = word.to<LinearNode>()->model;
      if (model.shift > 63 || model.last > (range.high - model.base) >> model.shift) {
        fail(word, range, "its model has slots beyond its range");
      }
    } else {
      const auto& node = *word.to<ComparisonNode>();
      if (!std::is_sorted(node.separators, node.separators + node.count)) {
        fail(word, range, "its separators are not in order");
      }
    }
    Map::each_child(word, [&](Word child, std::uint32_t first, std::uint32_t end) {
      check(child, range_of(word, range, first, end), keys);
    });
  }

  [[noreturn]] static void fail(Word word, const Range& range, const std::string& what) {
    static constexpr const char* kNames[] = {
        "empty", "gapped leaf", "log leaf",       "hashed leaf", "perfect leaf", "", "",
        "",      "linear node", "comparison node"};
    std::ostringstream text;
    text << "index: " << kNames[static_cast<int>(word.kind())] << " of codes " << range.low
         << " to " << range.high << ": " << what;
    throw std::logic_error(text.str());
  }

  const Map& tree_;
  std::vector<std::uint64_t> leaves_;  // words of those that were checked
};

}  // namespace headrace::index
