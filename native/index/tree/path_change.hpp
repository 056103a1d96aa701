// What all changes of structure do: they follow the way to a leaf, gather entries, and put others
// in their place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "index/tree/build.hpp"
#include "index/tree/tree.hpp"
#include "index/tree/unordered.hpp"

namespace headrace::index {

// Sorts entries by code, by way of pairs in working memory of `count` pairs.
template <class Value>
void sort_entries(EntryBuffer<Value>& entries, std::pair<std::uint64_t, Value>* pairs) {
  if (std::is_sorted(entries.codes, entries.codes + entries.count)) return;
  if constexpr (value_bytes<Value> == 0) {
    std::sort(entries.codes, entries.codes + entries.count);
  } else {
    sort_lowest(
        entries.count, entries.count,
        [&](std::size_t i) { return std::pair(entries.codes[i], entries.values[i]); }, pairs);
    for (std::size_t i = 0; i < entries.count; ++i) {
      std::tie(entries.codes[i], entries.values[i]) = pairs[i];
    }
  }
}

template <class Value, class Sharing, class Allocator>
class PathChange {
 protected:
  using Map = Tree<Value, Sharing, Allocator>;
  using Draft = typename Map::Draft;
  using Scratch = typename Map::Scratch;
  using Making = Builder<Value, Sharing, Allocator>;
  using Pair = std::pair<std::uint64_t, Value>;
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

  explicit PathChange(Map& tree) : tree_(tree), path_(tree.memory.allocator()) {}

  void start(std::uint64_t code) {
    tree_.state.reclaim(tree_.memory);
    tree_.trace(code, path_);
    code_ = code;
    leaf_ = Map::child_of(at());
  }
  Step& at() { return path_.back(); }
  std::size_t keys_of_leaf() const { return leaf_count<Value, Sharing>(leaf_); }

  // Entries of the leaf, then as many pairs to sort them by.
  static std::size_t scratch_bytes(std::size_t count) {
    const auto pairs = value_bytes<Value> == 0 ? 0 : count * sizeof(Pair);
    return Scratch::bytes(count) + 64 + pairs;
  }
  EntryBuffer<Value> gather(const Scratch& memory, std::size_t count) const {
    auto entries = memory.entries(count);
    with_leaf<Value, Sharing>(leaf_, [&](auto leaf) { leaf.gather(0, entries); });
    sort(memory, entries, count);
    return entries;
  }
  static void sort(const Scratch& memory, EntryBuffer<Value>& entries, std::size_t count) {
    const auto pairs = (Scratch::bytes(count) + 63) / 64 * 64;
    sort_entries(entries, reinterpret_cast<Pair*>(memory.template as<char>() + pairs));
  }

  bool may_halve(Word word) const {
    const auto& node = *word.to<LinearNode>();
    const auto slots = node.model.slots();
    return 2 * slots <= tree_.configuration.fragments && slots <= std::size_t{2} * node.children &&
           node.model.shift != 0;
  }

  void halve_slots() {
    const auto& node = *at().node.template to<LinearNode>();
    const auto room = (at().range.high - node.model.base) >> (node.model.shift - 1);
    const auto last = std::min<std::uint64_t>(2 * node.model.last + 1, room);
    rebuild_slots({node.model.base, static_cast<std::uint32_t>(last), node.model.shift - 1},
                  [](std::size_t slot) { return slot / 2; });
  }

  // The same node with another model, whose slots were the old slots that `origin` names.
  template <class Origin>
  void rebuild_slots(const Model& model, Origin&& origin) {
    const auto& old = *at().node.template to<LinearNode>();
    const auto* slots = slots_of(at().node);
    Draft draft(tree_);
    auto* node = new (draft.allocate(LinearNode::lines(model.slots())))
        LinearNode{model, old.children, old.built_keys, old.deepened};
    for (std::size_t slot = 0; slot < model.slots(); ++slot) {
      node->slots()[slot] = slots[origin(slot)];
    }
    tree_.state.expect(1);
    draft.keep(0);
    replace_node(Word(reinterpret_cast<Line*>(node), Kind::linear));
  }

  // Puts another node in the place of the one above the leaf.
  void replace_node(Word word) {
    const auto old = at().node;
    place_node(word);
    tree_.retire(old);
  }

  void place_node(Word word) {
    if (path_.size() == 1) {
      tree_.set_root(word);
    } else {
      const auto& above = path_[path_.size() - 2];
      Map::point(above.node, above.first, above.end, word);
    }
  }

  void count_children(int more) {
    if (at().node.kind() != Kind::linear) return;
    at().node.template to<LinearNode>()->children += static_cast<std::uint32_t>(more);
  }

  Map& tree_;
  Vector<Step> path_;  // the nodes above the leaf, from the root on
  std::uint64_t code_ = 0;
  Word leaf_;
};

}  // namespace headrace::index
