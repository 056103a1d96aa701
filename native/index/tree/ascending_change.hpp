// Changes for keys that ascend, as time stamps and counters do: a full leaf whose entries are all
// below the new code keeps them where they are, and the next keys get a leaf of their own.
//
// The leaf is parted before the code's slot, in the lowest node above it whose slots tell the code
// from the leaf's lowest entry. A code can be far beyond a node's slots: keys come in bursts with
// pauses between them, and nodes below have slots for the keys of one burst. Such a node is passed
// over, as a burst in a node of its own below the last one's would make a path longer with every
// burst. Where no node above has a slot for the code, or may get one:
//   widen    slots are added at the end of the lowest node that they are not too many for;
//   extend   all that is below the highest node's last slot gets a node above it, whose slots are
//            as wide as the distance to the code is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/tree/balance.hpp"
#include "index/tree/path_change.hpp"

namespace headrace::index {

template <class Value, class Sharing, class Allocator>
class AscendingChange : protected PathChange<Value, Sharing, Allocator> {
  using Base = PathChange<Value, Sharing, Allocator>;

 protected:
  using Base::at;
  using Base::code_;
  using Base::leaf_;
  using Base::path_;
  using Base::rebuild_slots;
  using Base::tree_;
  using typename Base::Draft;
  using typename Base::Making;
  using typename Base::Map;

  // Of a leaf for keys in ascending order: each change looks at all of its slots.
  static constexpr std::uint32_t kMostSlotsAhead = 1024;

  explicit AscendingChange(Map& tree) : Base(tree) {}

  // Leaves to be made do not need their entries in order, which costs more than all the rest.
  bool any_order() const {
    return tree_.configuration.leaf == Leaf::hashed || tree_.configuration.leaf == Leaf::log;
  }

  // Leaves made by changes have room for the inserts to come. Of gapped and hashed ones operations
  // become slower as they fill, of log ones as they grow.
  double fill() const {
    const auto& configuration = tree_.configuration;
    if (configuration.leaf == Leaf::gapped) return 0.6;
    return std::max(configuration.leaf == Leaf::hashed ? 0.55 : 0.66, configuration.fill - 0.1);
  }

  // True of a code above those of some entries, as keys in ascending order are.
  bool beyond_all(const Entries<Value>& entries) const {
    return entries.count >= kFewAppended &&
           code_ > *std::max_element(entries.codes, entries.codes + entries.count);
  }

  // True if the next slots, at each node of the path, have no keys.
  bool beyond_all_keys() const {
    return std::all_of(path_.begin(), path_.end(), [](const Step& step) {
      const auto* const slots = slots_of(step.node);
      const auto end = std::min<std::size_t>(step.end + kMostSlotsAhead, slot_count(step.node));
      return std::all_of(slots + step.end, slots + end,
                         [](std::uint64_t word) { return Word(word).none(); });
    });
  }

  // Room for keys that are likely to follow.
  void reserve(Making& builder) const {
    builder.reserve(std::min(tree_.size() / 2, most_keys(tree_.configuration)));
  }

  // Gives the code, which is beyond all entries of its leaf, a leaf with room for more, or makes
  // way for that: it is perhaps to be called again. What is in the code's slot moves there; the
  // rest stays where it is, or, if much has moved, is made anew without room. False, and nothing is
  // changed: the leaf's own node has both in one slot, or the path is long enough.
  bool split_off(EntryBuffer<Value>& entries) {
    // The last code that the leaf's lowest entry, or the slots of a node below, are for.
    auto last_code = *std::min_element(entries.codes, entries.codes + entries.count);
    auto level = path_.size();
    while (level-- > 0) {
      const auto& step = path_[level];
      if (step.node.kind() == Kind::linear) {
        const auto& model = step.node.template to<LinearNode>()->model;
        const auto slot = code_ > model.base ? (code_ - model.base) >> model.shift : 0;
        if (slot <= step.first || last_code >= model.base + (slot << model.shift)) {
          if (level + 1 == path_.size()) return false;
          break;  // slots here are too wide
        }
        if (slot <= model.last) {
          split_before(level, static_cast<std::uint32_t>(slot), entries);
          return true;
        }
        if (may_widen_up(step, slot)) {
          path_.resize(level + 1);
          widen_up(slot);
          return true;
        }
        const auto end = model.base + (std::uint64_t{model.slots()} << model.shift);
        last_code = std::max(last_code, end - 1);
      }
      // Further up all of the node's keys have to be below the code.
      if (level == 0 || step.end != slot_count(step.node)) break;
    }
    const auto leaves = 2 * tree_.size() / most_keys(tree_.configuration);
    if (path_.size() >= depth_bound(leaves)) return false;
    extend(level, last_code);
    return true;
  }

  // Whether a node gets slots up to number `needed`, which is beyond its last.
  bool may_widen_up(const Step& step, std::uint64_t needed) const {
    const std::uint64_t slots = slot_count(step.node);
    return needed < std::min<std::uint64_t>(4 * slots + 16, tree_.configuration.fragments);
  }

  // Adds them at the end of the path, at least as many as there are: the cost of copying them is
  // that of the splits that follow.
  void widen_up(std::uint64_t needed) {
    const auto& model = at().node.template to<LinearNode>()->model;
    const std::uint64_t slots = model.slots();
    const auto room = (at().range.high - model.base) >> model.shift;
    const auto last = std::min(
        {std::max(needed, 2 * slots), room, std::uint64_t{tree_.configuration.fragments} - 1});
    rebuild_slots({model.base, static_cast<std::uint32_t>(last), model.shift},
                  [slots](std::size_t slot) { return std::min(slot, std::size_t{slots - 1}); });
  }

  // Puts entries with codes below `code` first; returns how many these are.
  static std::size_t partition(EntryBuffer<Value>& entries, std::uint64_t code) {
    std::size_t low = 0;
    auto high = entries.count;
    for (;;) {
      while (low < high && entries.codes[low] < code) ++low;
      while (low < high && entries.codes[high - 1] >= code) --high;
      if (low == high) return low;
      std::swap(entries.codes[low], entries.codes[--high]);
      if constexpr (value_bytes<Value> != 0) std::swap(entries.values[low], entries.values[high]);
      ++low;
    }
  }

 private:
  // Of a leaf with fewer entries, a random code is too often beyond all of them.
  static constexpr std::size_t kFewAppended = 16;
  // Of hashed and log leaves that are left behind by keys in ascending order.
  static constexpr double kTightFill = 0.85;
  // Of a node that is put above others: bits of the code's slot, and slots.
  static constexpr int kExtendedBits = 4;
  static constexpr std::uint64_t kExtendedSlots = 32;

  // Parts the leaf's entries before a slot of a node above; there are some before it.
  void split_before(std::size_t level, std::uint32_t slot, EntryBuffer<Value>& entries) {
    const auto node = path_[level].node;
    const auto run_end = path_[level].end;
    const auto left = partition(entries, node.template to<LinearNode>()->model.first_code(slot));
    const auto low = Entries<Value>(entries).part(0, left);
    const auto high = Entries<Value>(entries).part(left, entries.count);
    const bool stays = high.count == 0 || (!Sharing::kShared && high.count * 4 < entries.count);
    Draft draft(tree_);
    const auto low_leaf =
        stays ? leaf_ : Making(tree_, draft, kTightFill, true).leaf(low, at().child_range());
    Making builder(tree_, draft, fill(), true);
    reserve(builder);
    const auto high_leaf = builder.make_leaf(high, false);
    tree_.state.expect(1);
    draft.keep(stays ? high.count : entries.count);
    const auto end = std::min(run_end, slot + kMostSlotsAhead);
    Map::point(node, slot, end, high_leaf);
    Map::point(node, end, run_end, Word());
    ++node.template to<LinearNode>()->children;
    if (stays) {
      erase_from_leaf(high);
    } else {
      Map::point(at().node, at().first, level + 1 == path_.size() ? slot : at().end, low_leaf);
      tree_.retire(leaf_);
    }
  }

  // Of entries that another leaf has by now.
  void erase_from_leaf(const Entries<Value>& entries) noexcept {
    if (entries.count == 0) return;
    tree_.forget_order(leaf_);
    with_leaf<Value, Sharing>(leaf_, [&](auto leaf) {
      for (std::size_t i = 0; i < entries.count; ++i) leaf.erase(entries.codes[i]);
    });
  }

  // Puts a node between one of the path and its child, whose slots end at `base`.
  void extend(std::size_t level, std::uint64_t base) {
    const auto& step = path_[level];
    const auto child = Map::child_of(step);
    const auto distance = code_ - base;
    const auto shift = static_cast<std::uint32_t>(
        std::max(0, static_cast<int>(std::bit_width(distance)) - kExtendedBits));
    const auto room = (step.child_range().high - base) >> shift;
    const Model model{base, static_cast<std::uint32_t>(std::min(kExtendedSlots - 1, room)), shift};
    Draft draft(tree_);
    const auto keys = std::min<std::size_t>(tree_.size(), ~std::uint32_t{0});
    auto* node = new (draft.allocate(LinearNode::lines(model.slots())))
        LinearNode{model, 1, static_cast<std::uint32_t>(keys), 0};
    const Word word(reinterpret_cast<Line*>(node), Kind::linear);
    Map::point(word, 0, static_cast<std::uint32_t>(model.slots()), child);
    draft.keep(0);
    Map::point(step.node, step.first, step.end, word);
  }
};

}  // namespace headrace::index
