// Trees made from sorted entries: for bulk loading, and in place of a leaf that became too large.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "index/tree/fit.hpp"
#include "index/tree/tree.hpp"

namespace headrace::index {

// First position from `from` on whose code is at least `code`; near ones are found fastest.
inline std::size_t gallop(const std::uint64_t* codes, std::size_t from, std::size_t count,
                          std::uint64_t code) {
  std::size_t step = 1;
  auto low = from;
  while (low + step <= count && codes[low + step - 1] < code) {
    low += step;
    step *= 2;
  }
  return static_cast<std::size_t>(
      std::lower_bound(codes + low, codes + std::min(low + step, count), code) - codes);
}

// Joins neighbours of a model's slots `first` to `end` - 1 until they have entries for one leaf,
// about `group`, and calls `close(from, to, part)` for each run of slots with its part of the
// entries.
template <class Value, class Close>
void join_slots(const Model& model, std::uint32_t first, std::uint32_t end,
                const Entries<Value>& entries, std::size_t group, const Close& close) {
  std::size_t part_begin = 0;
  std::size_t part_end = 0;
  for (auto slot = first; slot < end; ++slot) {
    const auto slot_end = slot + 1 == end ? entries.count
                                          : gallop(entries.codes, part_end, entries.count,
                                                   model.first_code(slot + 1));
    if (part_end != part_begin && slot_end - part_begin > group) {
      close(first, slot, entries.part(part_begin, part_end));
      first = slot;
      part_begin = part_end;
    }
    part_end = slot_end;
  }
  close(first, end, entries.part(part_begin, part_end));
}

// Only of multimaps: entries that no node can separate. They stay in one leaf of any size.
template <class Value>
bool one_code(const Entries<Value>& entries) {
  return entries.count == 0 || entries.codes[0] == entries.codes[entries.count - 1];
}

template <class Value, class Sharing, class Allocator>
class Builder {
  using Map = Tree<Value, Sharing, Allocator>;
  using Draft = typename Map::Draft;
  using Scratch = typename Map::Scratch;

 public:
  // `fill`: share of each leaf that is to be filled; `growing`: more or less.
  Builder(Map& tree, Draft& draft, double fill, bool growing = false)
      : tree_(tree),
        draft_(draft),
        fill_(fill),
        growing_(growing),
        most_(most_keys(tree.configuration)) {}

  // The next leaf, if of the same type, is to be larger than this one, which was found full.
  void exceed(Word full) { full_ = full; }
  // Hashed and log leaves are to have room for so many entries at least.
  void reserve(std::size_t entries) { reserved_ = entries; }

  // A whole tree. Its root is a node with two children at least: no leaf has both 0 and the
  // highest code, which mark empty entries.
  Word root(const Entries<Value>& entries) {
    if (!growing_) tree_.memory.expect(expected_bytes(entries.count));
    if (!one_code(entries)) return inner(entries, Range{});
    const Model halves{0, 1, 63};
    auto* node = make_node(halves, entries.count);
    const auto word = Word(reinterpret_cast<Line*>(node), Kind::linear);
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
      const bool here = entries.count != 0 && halves.slot(entries.codes[0]) == slot;
      const auto child = here ? leaf(entries, range_of(word, {}, slot, slot + 1)) : Word();
      Map::point(word, slot, slot + 1, child);
      node->children += here;
    }
    return word;
  }

  // A leaf if they fit into one, else an inner node.
  Word subtree(const Entries<Value>& entries, const Range& range) {
    return entries.count <= most_ || one_code(entries) ? leaf(entries, range)
                                                       : inner(entries, range);
  }

  // A node with at least two children, for at least two entries (a leaf if of one code only).
  Word inner(const Entries<Value>& entries, const Range& range) {
    if (one_code(entries)) return leaf(entries, range);
    const auto group = group_keys(entries.count);
    const auto allowed = entries.count <= 2 * most_ ? tree_.configuration.initial_fragments
                                                    : tree_.configuration.fragments;
    const auto most_slots = slots_to_try(entries.count, group, allowed);
    Fit fitted;
    {
      const Scratch histogram(tree_, most_slots * sizeof(std::uint32_t));
      fitted = fit({entries.codes, entries.count, group, most_slots,
                    histogram.template as<std::uint32_t>()});
    }
    return fitted.linear ? linear(entries, range, fitted.model) : comparison(entries, range);
  }

  Word leaf(const Entries<Value>& entries, const Range& range) {
    if (entries.count == 0) return Word();
    return make_leaf(entries, range.low == 0);
  }

  // Of the configured type.
  Word make_leaf(const Entries<Value>& entries, bool high_empty) {
    switch (tree_.configuration.leaf) {
      case Leaf::log:
        return make_log(entries, high_empty);
      case Leaf::gapped:
        return make_gapped(entries, high_empty);
      case Leaf::perfect:
        if (entries.count != 0) return make_perfect(entries, high_empty);
        return make_hashed(entries, high_empty);  // a perfect hash of no keys is none
      default:
        return make_hashed(entries, high_empty);
    }
  }

  // The start of the code at `position`, or of the next one if it is the first: where to divide.
  static std::size_t boundary(const Entries<Value>& entries, std::size_t position) {
    const auto* codes = entries.codes;
    if (position > 0 && codes[position - 1] < codes[position]) return position;
    const auto* found = codes[position] == codes[0]
                            ? std::upper_bound(codes, codes + entries.count, codes[0])
                            : std::lower_bound(codes, codes + entries.count, codes[position]);
    return static_cast<std::size_t>(found - codes);
  }

 private:
  Word make_hashed(const Entries<Value>& entries, bool high_empty) {
    using Hashed = HashedLeaf<Value, Sharing>;
    const auto most = Hashed::units(kMostMovedKeys, 1);
    const auto room = std::max(Hashed::units(entries.count, varied_fill(entries)),
                               Hashed::units(reserved_, kReservedFill));
    auto units = at_least(Kind::hashed, room, most);
    const auto least =
        at_least(Kind::hashed, Hashed::units(least_room(entries), kMostGrownFill), most);
    auto* lines = allocate(units, least, Hashed::kBucketLines);
    const Word word(lines, Kind::hashed, units, high_empty);
    Hashed(word).fill(entries);
    return word;
  }

  Word make_log(const Entries<Value>& entries, bool high_empty) {
    using Log = LogLeaf<Value, Sharing>;
    const bool fingerprints = tree_.configuration.fingerprints;
    const auto of = [&](double fill) { return Log::units(entries.count, fill, fingerprints); };
    const auto room =
        std::max(of(varied_fill(entries)), Log::units(reserved_, kReservedFill, fingerprints));
    const auto most = Log::units(kMostMovedKeys, 1, fingerprints);
    auto units = at_least(Kind::log, room, most);
    const auto least =
        at_least(Kind::log, Log::units(least_room(entries), kMostGrownFill, fingerprints), most);
    auto* lines = allocate(units, least, Log::kUnitLines);
    Log::create(lines, units, fingerprints, entries);
    return Word(lines, Kind::log, units, high_empty);
  }

  // A little more than the leaves and nodes for so many entries take.
  std::size_t expected_bytes(std::size_t count) const {
    const auto entry = sizeof(std::uint64_t) + value_bytes<Value>;
    return static_cast<std::size_t>(static_cast<double>(count * entry) * 1.05 / fill_);
  }

  // Entries that a leaf has room for where the memory for all that it asks for is not at hand.
  std::size_t least_room(const Entries<Value>& entries) const {
    return std::max(entries.count, reserved_ * 3 / 4);
  }

  // Neighbours that were filled alike would be full at the same time, and what they leave behind
  // when they grow would be too small for each of them.
  double varied_fill(const Entries<Value>& entries) const {
    if (entries.count == 0) return fill_;
    const auto share = static_cast<double>(scatter(entries.codes[0]) >> 48) / 65536;
    return std::min(growing_ ? 0.9 : 0.98, fill_ * (0.9 + 0.2 * share));
  }

  // Lines for a leaf of so many units; in changes, about as many, but not less than `least`.
  Line* allocate(std::uint32_t& units, std::uint32_t least, std::size_t unit_lines) {
    auto lines = units * unit_lines;
    if (!growing_ || unit_lines != 1 || units < 16) return draft_.allocate(lines);
    auto* block = draft_.allocate_about(lines, std::min<std::size_t>(least, lines));
    units = static_cast<std::uint32_t>(lines);
    return block;
  }

  Word make_gapped(const Entries<Value>& entries, bool high_empty) {
    using Gapped = GappedLeaf<Value, Sharing>;
    const auto capacity = Gapped::capacity_for(entries.count, fill_);
    auto* lines = draft_.allocate(Gapped::lines_for(capacity));
    Gapped::create(lines, capacity, tree_.configuration, entries);
    return Word(lines, Kind::gapped, 0, high_empty);
  }

  Word make_perfect(const Entries<Value>& entries, bool high_empty) {
    const PerfectDraft<Value, Allocator> made(entries, tree_.memory.allocator());
    const Word word(draft_.allocate(made.lines()), Kind::perfect, made.units(), high_empty);
    made.write(word);
    return word;
  }

  // Units for a leaf; for one in place of a full one more than that has, but at most `most`.
  std::uint32_t at_least(Kind kind, std::uint32_t units, std::uint32_t most) const {
    if (kind != full_.kind()) return units;
    return std::max(units, std::min(full_.units() + full_.units() / 8 + 1, most));
  }

  // Entries that share a leaf where several slots are joined; the rest is room to grow.
  std::size_t group_keys(std::size_t count) const {
    return count <= 2 * most_ ? (count + 1) / 2 : std::max<std::size_t>(1, most_ * 5 / 8);
  }

  LinearNode* make_node(const Model& model, std::size_t count) {
    auto* memory = draft_.allocate(LinearNode::lines(model.slots()));
    const auto built = static_cast<std::uint32_t>(std::min<std::size_t>(count, ~0U));
    return new (memory) LinearNode{model, 0, built, 0};
  }

  // Neighbouring slots are joined until they have entries for one leaf.
  Word linear(const Entries<Value>& entries, const Range& range, const Model& model) {
    auto* node = make_node(model, entries.count);
    const auto word = Word(reinterpret_cast<Line*>(node), Kind::linear);
    join_slots(model, 0, static_cast<std::uint32_t>(model.slots()), entries,
               group_keys(entries.count),
               [&](std::uint32_t first, std::uint32_t end, const Entries<Value>& part) {
                 Map::point(word, first, end, subtree(part, range_of(word, range, first, end)));
                 node->children += part.count != 0;
               });
    return word;
  }

  Word comparison(const Entries<Value>& entries, const Range& range) {
    const auto leaves = (entries.count - 1) / group_keys(entries.count) + 1;
    const auto children = std::clamp<std::size_t>(leaves, 2, ComparisonNode::kMostChildren);
    auto* node = new (draft_.allocate(ComparisonNode::lines())) ComparisonNode{};
    const auto word = Word(reinterpret_cast<Line*>(node), Kind::comparison);
    std::size_t bounds[ComparisonNode::kMostChildren + 1] = {};
    for (std::size_t i = 1; i < children; ++i) {
      const auto bound = boundary(entries, i * entries.count / children);
      if (bound > bounds[node->count]) bounds[++node->count] = bound;
    }
    bounds[node->count + 1] = entries.count;
    for (std::uint32_t i = 0; i < node->count; ++i) {
      node->separators[i] = entries.codes[bounds[i + 1]];
    }
    for (std::uint32_t i = 0; i <= node->count; ++i) {
      const auto part = entries.part(bounds[i], bounds[i + 1]);
      Map::point(word, i, i + 1, subtree(part, range_of(word, range, i, i + 1)));
    }
    return word;
  }

  // In changes, of leaves that get less memory than they ask for.
  static constexpr double kMostGrownFill = 0.72;
  static constexpr double kReservedFill = 0.75;  // a tighter leaf may be full before

  Map& tree_;
  Draft& draft_;
  double fill_;
  bool growing_;
  std::size_t most_;
  Word full_;
  std::size_t reserved_ = 0;
};

}  // namespace headrace::index
