// Changes of structure: what an insert into a full leaf, or an erase that empties one, leads to.
//
// A change first allocates and writes all new blocks, then stores the words that lead to them, then
// retires the old blocks; so an exception leaves the tree as it was, and a reader sees either
// state. Each moves the keys of one leaf only. The cases for a full leaf, cheapest first (they
// include those of MAPLE's Figure 6.3):
//   regrow   it has fewer keys than a leaf may have: copied into a larger one;
//   widen    it is at the end of its model's range, and its keys are beyond: slots are added;
//   split    it covers several slots of its node: split between two of them. If the code is beyond
//            all of its entries, see ascending_change.hpp;
//   refine   each slot of its node becomes two;
//   deepen   it becomes an inner node with several leaves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/tree/ascending_change.hpp"
#include "index/tree/balance.hpp"
#include "index/tree/build.hpp"

namespace headrace::index {

template <class Value, class Sharing, class Allocator>
class Change : AscendingChange<Value, Sharing, Allocator> {
  using Base = AscendingChange<Value, Sharing, Allocator>;
  using Base::any_order;
  using Base::at;
  using Base::beyond_all;
  using Base::beyond_all_keys;
  using Base::code_;
  using Base::count_children;
  using Base::fill;
  using Base::gather;
  using Base::halve_slots;
  using Base::keys_of_leaf;
  using Base::leaf_;
  using Base::may_halve;
  using Base::may_widen_up;
  using Base::partition;
  using Base::path_;
  using Base::place_node;
  using Base::rebuild_slots;
  using Base::replace_node;
  using Base::reserve;
  using Base::scratch_bytes;
  using Base::sort;
  using Base::split_off;
  using Base::start;
  using Base::tree_;
  using Base::widen_up;
  using typename Base::Draft;
  using typename Base::Making;
  using typename Base::Map;
  using typename Base::Scratch;

 public:
  explicit Change(Map& tree) : Base(tree) {}

  // Makes room for a code whose leaf is full or `none`; perhaps to be called again.
  void make_room(std::uint64_t code) {
    start(code);
    if (leaf_.none()) return plant();
    const auto most = with_leaf<Value, Sharing>(leaf_, [](auto leaf) { return leaf.capacity(); });
    const Scratch memory(tree_, scratch_bytes(most));
    auto entries = memory.entries(most);
    with_leaf<Value, Sharing>(leaf_, [&](auto leaf) { leaf.gather(0, entries); });
    const bool fits = entries.count < most_keys(tree_.configuration) && !slow();
    const bool appends = any_order() && beyond_all(entries);
    const bool many = 2 * entries.count >= most_keys(tree_.configuration);
    if (appends && many && split_off(entries)) return;
    if (any_order() && fits) return replace(entries, true, appends);
    if (any_order() && split_unsorted(entries)) return;
    sort(memory, entries, most);
    if (fits || one_code(Entries<Value>(entries))) return replace(entries, true);
    if (at().node.kind() == Kind::comparison) return split_comparison(entries);
    if (widen(entries)) return;
    if (at().end - at().first > 1) return split_run(entries);
    if (!refine(entries)) deepen(entries);
  }

  // Gives the leaf of a code, which is not full, a size that fits; or drops it if it is empty.
  void compact(std::uint64_t code) {
    start(code);
    if (leaf_.none()) return;
    const auto count = keys_of_leaf();
    const Scratch memory(tree_, scratch_bytes(count));
    replace(gather(memory, count), false);
  }

 private:
  // A gapped leaf of some size whose model is worse than expected is split before it is full.
  bool slow() const {
    if (leaf_.kind() != Kind::gapped) return false;
    const GappedLeaf<Value, Sharing> leaf(leaf_);
    return leaf.count() >= 256 && leaf.too_slow();
  }

  void point_and_retire(Word child) {
    Map::point(at().node, at().first, at().end, child);
    tree_.retire(leaf_);
  }

  // A first leaf for a run of empty slots; inside of one half of a node, so that no leaf has both
  // the lowest and the highest codes. One beyond all keys is likely to be filled at once.
  void plant() {
    const auto half = static_cast<std::uint32_t>(slot_count(at().node) / 2);
    const auto slot = slot_in(at().node, code_);
    const bool last = any_order() && beyond_all_keys();
    at().end = std::min(at().end, slot + Base::kMostSlotsAhead);
    if (at().node.kind() == Kind::comparison) {  // whose children have one slot each
      at().first = slot;
      at().end = slot + 1;
    } else if (slot < half) {
      at().end = std::min(at().end, half);
    } else {
      at().first = std::max(at().first, half);
    }
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    if (last) reserve(builder);
    const auto leaf = builder.make_leaf({}, at().child_range().low == 0);
    draft.keep(0);
    Map::point(at().node, at().first, at().end, leaf);
    count_children(1);
  }

  // `appends`: more keys are likely to follow, so that leaves grow by more at once.
  void replace(const Entries<Value>& entries, bool larger, bool appends = false) {
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    if (appends) builder.reserve(std::min(2 * entries.count, most_keys(tree_.configuration)));
    if (larger) builder.exceed(leaf_);
    auto leaf = builder.leaf(entries, at().child_range());
    tree_.state.expect(1);
    draft.keep(entries.count);
    point_and_retire(leaf);
    if (leaf.none()) count_children(-1);
  }

  // True of entries beyond either end of the range of their node's model.
  bool outside_model(const Entries<Value>& entries) {
    const auto& model = at().node.template to<LinearNode>()->model;
    const auto outside = [&model](std::uint64_t code) {
      return code < model.base || (code - model.base) >> model.shift > model.last;
    };
    const auto* const end = entries.codes + entries.count;
    return (at().first == 0 || at().end == model.slots()) &&
           std::any_of(entries.codes, end, outside);
  }

  // Splits a run of a few slots inside of the model's range where that halves its entries best.
  // False, and nothing is changed: it is another case, or one slot has most of them.
  bool split_unsorted(EntryBuffer<Value>& entries) {
    constexpr std::uint32_t kMostSlotsOfRun = 64;
    const auto slots = at().end - at().first;
    if (at().node.kind() != Kind::linear || slots < 2 || slots > kMostSlotsOfRun ||
        outside_model(entries)) {
      return false;
    }
    const auto& model = at().node.template to<LinearNode>()->model;
    std::uint32_t counts[kMostSlotsOfRun] = {};
    for (std::size_t i = 0; i < entries.count; ++i) {
      ++counts[model.slot(entries.codes[i]) - at().first];
    }
    std::uint32_t slot = 0;
    std::size_t left = counts[0];
    while (slot + 2 < slots && 2 * left + counts[slot + 1] < entries.count) left += counts[++slot];
    const auto larger = std::max(left, entries.count - left);
    if (larger > entries.count * 3 / 4 || larger > most_keys(tree_.configuration)) return false;
    const auto middle = at().first + slot + 1;
    partition(entries, model.first_code(middle));
    const Entries<Value> all = entries;
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    const auto low = builder.leaf(all.part(0, left), at().child_range());
    const auto high = builder.make_leaf(all.part(left, all.count), false);
    tree_.state.expect(1);
    draft.keep(all.count);
    Map::point(at().node, at().first, middle, low);
    Map::point(at().node, middle, at().end, high);
    count_children(1);
    tree_.retire(leaf_);
    return true;
  }

  // The run's slots are parted where that halves its keys best. A slot with almost all of them gets
  // a subtree, so that no split leaves a leaf that is as good as full.
  void split_run(const Entries<Value>& entries) {
    const auto& model = at().node.template to<LinearNode>()->model;
    const auto middle = model.slot(entries.codes[entries.count / 2]);
    const auto before = entries_before(entries, middle);
    const auto after = entries_before(entries, middle + 1);
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    Word words[3];
    std::uint32_t ends[3] = {middle, middle + 1, at().end};
    std::size_t bounds[4] = {0, before, after, entries.count};
    if (after - before <= entries.count * 3 / 4) {  // the middle slot joins the smaller side
      const auto to_right = before > entries.count - after;
      ends[0] = ends[1] = to_right ? std::max(middle, at().first) : middle + 1;
      bounds[1] = bounds[2] = to_right ? before : after;
    }
    auto first = at().first;
    for (int i = 0; i < 3; ++i) {
      const auto part = entries.part(bounds[i], bounds[i + 1]);
      const auto range = range_of(at().node, at().range, first, ends[i]);
      if (first < ends[i]) {
        words[i] = part.count * 4 > entries.count * 3 ? builder.inner(part, range)
                                                      : builder.subtree(part, range);
      }
      first = ends[i];
    }
    tree_.state.expect(1);
    draft.keep(entries.count);
    first = at().first;
    int children = -1;
    for (int i = 0; i < 3; ++i) {
      if (first < ends[i]) {
        Map::point(at().node, first, ends[i], words[i]);
        children += !words[i].none();
      }
      first = std::max(first, ends[i]);
    }
    count_children(children);
    tree_.retire(leaf_);
  }

  // Entries in slots of the run below `slot`.
  std::size_t entries_before(const Entries<Value>& entries, std::uint32_t slot) {
    if (slot <= at().first) return 0;
    if (slot >= at().end) return entries.count;
    const auto code = at().node.template to<LinearNode>()->model.first_code(slot);
    return static_cast<std::size_t>(
        std::lower_bound(entries.codes, entries.codes + entries.count, code) - entries.codes);
  }

  void split_comparison(const Entries<Value>& entries) {
    const auto& old = *at().node.template to<ComparisonNode>();
    if (old.count + 1 == ComparisonNode::kMostChildren) return deepen(entries);
    const auto half = Making::boundary(entries, entries.count / 2);
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    auto* node = new (draft.allocate(ComparisonNode::lines())) ComparisonNode(old);
    const Word word(reinterpret_cast<Line*>(node), Kind::comparison);
    const auto i = slot_in(at().node, entries.codes[0]);
    std::copy_backward(old.separators + i, old.separators + old.count,
                       node->separators + old.count + 1);
    std::copy_backward(old.children + i, old.children + old.count + 1,
                       node->children + old.count + 2);
    node->separators[i] = entries.codes[half];
    ++node->count;
    auto range = at().child_range();
    Map::point(word, i, i + 1, builder.subtree(entries.part(0, half), range));
    range.low = entries.codes[half];
    Map::point(word, i + 1, i + 2, builder.subtree(entries.part(half, entries.count), range));
    tree_.state.expect(2);
    draft.keep(entries.count);
    replace_node(word);
    tree_.retire(leaf_);
  }

  // Slots beyond the end of the model's range, at least as many as it has: the cost of copying them
  // is that of the splits that follow.
  bool widen(const Entries<Value>& entries) {
    const auto& node = *at().node.template to<LinearNode>();
    const auto& model = node.model;
    const auto slots = model.slots();
    const std::size_t most = tree_.configuration.fragments;
    const auto high = entries.codes[entries.count * 3 / 4];
    const auto low = entries.codes[entries.count / 4];
    if (at().end == slots && high > model.base && (high - model.base) >> model.shift >= slots) {
      const auto needed = (high - model.base) >> model.shift;
      if (!may_widen_up(at(), needed)) return false;
      widen_up(needed);
      return true;
    }
    if (at().first == 0 && low < model.base) {
      const auto needed = ((model.base - 1 - low) >> model.shift) + 1;
      const auto room = (model.base - at().range.low) >> model.shift;
      const auto added = std::min<std::uint64_t>({std::max(needed, slots), room, most - slots});
      if (slots >= most || added < needed || needed > 4 * slots + 16) return false;
      rebuild_slots({model.base - (added << model.shift),
                     static_cast<std::uint32_t>(model.last + added), model.shift},
                    [added](std::size_t slot) { return slot < added ? 0 : slot - added; });
      return true;
    }
    return false;
  }

  // Half of the width for each slot: worthwhile while most slots have leaves of their own.
  bool refine(const Entries<Value>& entries) {
    const auto& model = at().node.template to<LinearNode>()->model;
    const auto median = entries.codes[entries.count / 2];
    if (median < model.base || (median - model.base) >> model.shift >= model.slots()) {
      return false;  // outside of the model, where slots are as wide as before
    }
    if (!may_halve(at().node)) return false;
    halve_slots();
    return true;
  }

  void deepen(const Entries<Value>& entries) {
    if (refit()) return;
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    const auto word = builder.inner(entries, at().child_range());
    tree_.state.expect(1);
    draft.keep(entries.count);
    point_and_retire(word);
  }

  // A node of few keys below which many leaves were deepened has the wrong model by now: its whole
  // subtree is made anew. Counted at all nodes above, the highest one that qualifies is taken.
  bool refit() {
    for (std::size_t level = 0; level < path_.size(); ++level) {
      if (path_[level].node.kind() != Kind::linear) continue;
      auto& node = *path_[level].node.template to<LinearNode>();
      const auto most = most_keys(tree_.configuration);
      if (++node.deepened < std::max<std::size_t>(4, node.built_keys / most)) continue;
      const auto count = keys_below(path_[level].node);
      node.deepened = 0;
      node.built_keys = static_cast<std::uint32_t>(std::min<std::size_t>(count, ~0U));
      if (count <= kMostMovedKeys) {
        refit(level, count);
        return true;
      }
    }
    return rebalance();
  }

  // If the path is too long: the lowest node whose subtree is too high for its leaves.
  bool rebalance() {
    const auto leaves = 2 * tree_.size() / most_keys(tree_.configuration);
    if (path_.size() < depth_bound(leaves)) return false;
    for (auto level = path_.size() - 1; level-- > 0;) {
      const auto node = path_[level].node;
      if (path_.size() - level < depth_bound(leaves_below(node))) continue;
      const auto count = keys_below(node);
      if (count <= kMostMovedKeys) {
        refit(level, count);
      } else if (!reroute(level)) {
        continue;
      }
      return true;
    }
    return false;
  }

  static std::size_t leaves_below(Word node) {
    std::size_t leaves = 0;
    Map::each_below(node, [&](Word word) { leaves += !word.inner(); });
    return leaves;
  }
  static std::size_t keys_below(Word node) {
    std::size_t keys = 0;
    Map::each_below(node, [&](Word word) {
      if (word.inner()) return;
      keys += leaf_count<Value, Sharing>(word);
    });
    return keys;
  }

  // False: all keys are in one leaf, which cannot take the node's place.
  bool reroute(std::size_t level) {
    const auto old = path_[level].node;
    Draft draft(tree_);
    Router<Value, Sharing, Allocator> router(tree_, draft);
    const auto word = router.route(old, path_[level].range);
    if (!word.inner()) return false;
    tree_.state.expect(tree_.blocks_below(old));
    draft.keep(0);
    path_.resize(level + 1);
    place_node(word);
    Map::each_below(old, [&](Word each) {
      if (each.inner()) tree_.retire(each);
    });
    return true;
  }

  void refit(std::size_t level, std::size_t count) {
    const auto old = path_[level].node;
    const Scratch memory(tree_, scratch_bytes(count));
    auto entries = memory.entries(count);
    Map::each_below(old, [&](Word word) {
      if (word.inner()) return;
      with_leaf<Value, Sharing>(word, [&](auto leaf) { leaf.gather(0, entries); });
    });
    sort(memory, entries, count);
    Draft draft(tree_);
    Making builder(tree_, draft, fill(), true);
    const auto word =
        level == 0 ? builder.root(entries) : builder.inner(entries, path_[level].range);
    tree_.state.expect(tree_.blocks_below(old));
    draft.keep(count);
    path_.resize(level + 1);
    place_node(word);
    tree_.release_all(old);
  }
};

}  // namespace headrace::index
