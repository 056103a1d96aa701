// Conversion: leaves are made anew by the configuration that is in force now.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/tree/path_change.hpp"

namespace headrace::index {

template <class Value, class Sharing, class Allocator>
class Conversion : PathChange<Value, Sharing, Allocator> {
  using Base = PathChange<Value, Sharing, Allocator>;
  using Base::at;
  using Base::count_children;
  using Base::keys_of_leaf;
  using Base::leaf_;
  using Base::path_;
  using Base::start;
  using Base::tree_;
  using typename Base::Draft;
  using typename Base::Making;
  using typename Base::Map;
  using typename Base::Scratch;
  using Part = std::pair<std::uint32_t, Word>;
  using Run = typename Base::template Vector<Part>;

 public:
  explicit Conversion(Map& tree) : Base(tree) {}

  // Makes all leaves below some slots anew, those of the leaf at a code among them, up to some
  // thousand keys; sets the code to the last one of them. Returns how many keys they have. What is
  // below a slot is made as by bulk loading, so that the tree becomes no deeper by it.
  std::size_t convert(std::uint64_t& code) {
    start(code);
    while (refine_root()) start(code);
    const auto count = join_run(ascend());
    code = at().child_range().high;
    if (count == 0) return 0;
    const Scratch memory(tree_, Base::scratch_bytes(count));
    auto entries = memory.entries(count);
    typename Base::template Vector<Word> old(tree_.memory.allocator());
    std::size_t blocks = 0;
    each_of_run([&](Word word) {
      old.push_back(word);
      blocks += tree_.blocks_below(word);
      gather_below(word, memory, count, entries);
    });
    Draft draft(tree_);
    const auto made = make_run(entries, draft);
    tree_.state.expect(blocks);
    draft.keep(count);
    auto first = at().first;
    int children = -static_cast<int>(old.size());
    for (const auto& [end, word] : made) {
      Map::point(at().node, first, end, word);
      children += !word.none();
      first = end;
    }
    count_children(children);
    for (const auto word : old) tree_.release_all(word);
    return count;
  }

 private:
  static constexpr std::size_t kConvertedKeys = 2048;  // at once, or those of one leaf

  // Ends the path at the highest node but the root that has a child with the leaf and not too many
  // keys; returns how many these are.
  std::size_t ascend() {
    auto count = leaf_.none() ? 0 : keys_of_leaf();
    while (path_.size() > 1) {
      const auto more = keys_up_to(at().node, kConvertedKeys);
      if (more > kConvertedKeys) break;
      count = more;
      path_.pop_back();
    }
    return count;
  }

  // Keys below a word; if they are more than `most`, some number that is, too.
  static std::size_t keys_up_to(Word word, std::size_t most) {
    if (word.none()) return 0;
    if (!word.inner()) return leaf_count<Value, Sharing>(word);
    std::size_t keys = 0;
    const auto* slots = slots_of(word);
    for (std::size_t slot = 0; slot < slot_count(word) && keys <= most; ++slot) {
      if (slot == 0 || slots[slot] != slots[slot - 1]) {
        keys += keys_up_to(Word(slots[slot]), most - keys);
      }
    }
    return keys;
  }

  // Lengthens the run of slots by what is after it while that is not too much. The two halves of a
  // node remain apart, as `plant` says.
  std::size_t join_run(std::size_t count) {
    if (at().node.kind() != Kind::linear) return count;
    const auto* slots = slots_of(at().node);
    const auto all = static_cast<std::uint32_t>(slot_count(at().node));
    const auto bound = at().first < all / 2 ? all / 2 : all;
    while (at().end < bound && count <= kConvertedKeys) {
      const auto word = slots[at().end];
      const auto more = keys_up_to(Word(word), kConvertedKeys - count);
      if (count + more > kConvertedKeys) break;
      auto end = at().end;
      while (end < all && slots[end] == word) ++end;
      if (end > bound) break;
      count += more;
      at().end = end;
    }
    return count;
  }

  // Leaves are in order; what is in each of them, is not.
  void gather_below(Word word, const Scratch& memory, std::size_t most,
                    EntryBuffer<Value>& entries) const {
    if (word.inner()) {
      Map::each_child(word, [&](Word child, std::uint32_t, std::uint32_t) {
        if (!child.none()) gather_below(child, memory, most, entries);
      });
      return;
    }
    const auto before = entries.count;
    with_leaf<Value, Sharing>(word, [&](auto leaf) { leaf.gather(0, entries); });
    EntryBuffer<Value> added{entries.codes + before, entries.values + before,
                             entries.count - before};
    Base::sort(memory, added, most);
  }

  template <class Action>
  void each_of_run(const Action& action) {
    const auto* slots = slots_of(at().node);
    for (auto slot = at().first; slot < at().end; ++slot) {
      const bool again = slot > at().first && slots[slot] == slots[slot - 1];
      if (!again && slots[slot] != 0) action(Word(slots[slot]));
    }
  }

  // What is to be below the slots of the run, each with the slot after its last one.
  Run make_run(const Entries<Value>& entries, Draft& draft) {
    Making builder(tree_, draft, tree_.configuration.fill);
    Run made(tree_.memory.allocator());
    const auto close = [&](std::uint32_t first, std::uint32_t end, const Entries<Value>& part) {
      made.emplace_back(end, builder.subtree(part, range_of(at().node, at().range, first, end)));
    };
    if (at().node.kind() == Kind::linear) {
      const auto& model = at().node.template to<LinearNode>()->model;
      const auto group = std::max<std::size_t>(1, most_keys(tree_.configuration) * 5 / 8);
      join_slots(model, at().first, at().end, entries, group, close);
    } else {
      close(at().first, at().end, entries);
    }
    return made;
  }

  // Halves the slots of the root, and ends the path there, if leaves are to be small for them.
  bool refine_root() {
    const auto root = path_[0].node;
    if (root.kind() != Kind::linear) return false;
    const auto slots = root.template to<LinearNode>()->model.slots();
    if (tree_.size() <= slots * (most_keys(tree_.configuration) * 5 / 16)) return false;
    if (!Base::may_halve(root)) return false;
    path_.resize(1);
    Base::halve_slots();
    return true;
  }
};

}  // namespace headrace::index
