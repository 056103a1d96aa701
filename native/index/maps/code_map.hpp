// An ordered map from 64-bit codes to values that is fast to read and to write.
//
// A tree of linear models (node.hpp) leads to leaves of several types (leaves.hpp). An operation
// that throws leaves the map as it was; only allocation throws. `Sharing`: Exclusive for one thread
// at a time (several may look up or copy it while none writes; scans and cursors sort log leaves in
// place, so they count as writes there), Shared for one writer beside readers (concurrent.hpp).
// `Allocator` is asked for aligned lines and chunks of 256 kB (memory.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "index/configuration.hpp"
#include "index/tree/batch.hpp"
#include "index/tree/build.hpp"
#include "index/tree/change.hpp"
#include "index/tree/conversion.hpp"
#include "index/tree/cursor.hpp"
#include "index/tree/inspect.hpp"
#include "index/tree/neighbours.hpp"
#include "index/tree/position.hpp"
#include "index/tree/ranks.hpp"
#include "index/tree/sort.hpp"
#include "index/tree/tree.hpp"

namespace headrace::index {

template <class Value, class Sharing = Exclusive, class Allocator = std::allocator<std::byte>>
class CodeMap {
  static_assert(std::is_trivially_copyable_v<Value> && std::is_default_constructible_v<Value>,
                "values are moved as bytes: they need to be trivially copyable, with a default");
  using Map = Tree<Value, Sharing, Allocator>;

 public:
  static constexpr bool kShared = Sharing::kShared;
  using Cursor = BasicCursor<Value, Sharing, Allocator>;
  using Place = Position<Value, Sharing, Allocator>;

  CodeMap() : CodeMap(Configuration{}) {}
  // Throws std::invalid_argument for a configuration that is not valid.
  explicit CodeMap(const Configuration& configuration, const Allocator& allocator = {})
      : tree_((configuration.validate(), configuration), allocator) {}
  explicit CodeMap(const Allocator& allocator) : CodeMap(Configuration{}, allocator) {}
  CodeMap(CodeMap&&) noexcept = default;
  CodeMap(CodeMap&& other, const Allocator& allocator) : CodeMap(other.configuration(), allocator) {
    if (allocator == other.allocator()) {
      tree_ = std::move(other.tree_);
    } else {
      copy_from(other);
    }
  }
  CodeMap(const CodeMap& other) : CodeMap(other, detail::allocator_of_copy(other.allocator())) {}
  CodeMap(const CodeMap& other, const Allocator& allocator)
      : CodeMap(other.configuration(), allocator) {
    copy_from(other);
  }
  CodeMap& operator=(CodeMap&& other) noexcept(detail::kMovesMemory<Allocator>) {
    if (detail::moves_memory(allocator(), other.allocator())) {
      tree_ = std::move(other.tree_);
    } else {
      become_copy(other, allocator());
    }
    return *this;
  }
  CodeMap& operator=(const CodeMap& other) {
    become_copy(other, detail::allocator_assigned(allocator(), other.allocator()));
    return *this;
  }

  // Replaces everything. Codes in any order; of equal ones the last counts.
  void build(const std::uint64_t* codes, const Value* values, std::size_t count, int threads = 1) {
    const SortedInput<Value, Allocator> input({codes, values, count}, threads,
                                              tree_.memory.allocator());
    typename Map::Draft draft(tree_);
    Builder<Value, Sharing, Allocator> builder(tree_, draft, configuration().fill);
    const auto root = builder.root(input.entries());
    const auto old = tree_.root();
    tree_.state.expect(tree_.blocks_below(old));
    draft.keep(0);
    tree_.set_root(root);
    tree_.set_size(input.entries().count);
    tree_.release_all(old);
    tree_.state.reclaim_all(tree_.memory);
    tree_.memory.expect(0);
  }

  bool get(std::uint64_t code, Value& out) const {
    [[maybe_unused]] const auto pin = tree_.state.pin();
    return get_from(tree_.leaf(code), code, out);
  }
  bool contains(std::uint64_t code) const {
    Value unused;
    return get(code, unused);
  }

  // The value in its place, until a change of the map, which may be given it. Null: not there.
  const Value* find(std::uint64_t code) const
    requires(!Sharing::kShared)
  {
    const auto word = tree_.leaf(code);
    if (word.none()) return nullptr;
    return with_leaf<Value, Sharing>(word, [code](auto leaf) { return leaf.find(code); });
  }

  // False: the code is present already, with its value as it was.
  bool insert(std::uint64_t code, const Value& value) { return put(code, value, false); }
  // True: the code is new, with this value. `out` is the value that it has.
  bool find_or_insert(std::uint64_t code, const Value& value, Value& out) {
    const Value stored = value;  // of one of this map's, which moves
    if (!insert(code, stored)) return !get(code, out);
    out = stored;
    return true;
  }
  // True: the code is new. False: its value was replaced.
  bool insert_or_assign(std::uint64_t code, const Value& value) { return put(code, value, true); }
  // False: the code is not there.
  bool update(std::uint64_t code, const Value& value) {
    const auto word = tree_.leaf(code);
    if (word.none()) return false;
    return with_leaf<Value, Sharing>(word, [&](auto leaf) {
      return write_entry(word, leaf, [&] { return leaf.update(code, value); });
    });
  }

  // False: the code is not there.
  bool erase(std::uint64_t code) { return erase_from(tree_.leaf(code), code); }

  // Up to `most` entries in ascending order from `from` on; returns how many.
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    return read(from, most, most <= most_keys(configuration()), codes, values);
  }

  // The same in descending order from `from` down.
  std::size_t scan_down(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                        Value* values) const {
    return index::scan_down(tree_, from, most, codes, values);
  }

  // Calls `action(codes, count)` for one leaf after another, ascending, with its codes from
  // `cursor` on in no order, until they are `most` or more; moves the cursor. False: the end is
  // reached.
  template <class Action>
  bool visit(std::uint64_t& cursor, std::size_t most, const Action& action) const
    requires(!Sharing::kShared)
  {
    std::vector<std::uint64_t> codes;
    std::vector<Element<Value>> values;
    for (std::size_t visited = 0; visited < most;) {
      std::uint64_t last = 0;
      if (const auto word = tree_.leaf(cursor, last); !word.none()) {
        with_leaf<Value, Sharing>(word, [&](auto leaf) {
          codes.resize(std::max(codes.size(), leaf.capacity()));
          values.resize(codes.size());
          EntryBuffer<Value> entries{codes.data(), value_array<Value>(values)};
          leaf.gather(cursor, entries);
          action(codes.data(), entries.count);
          visited += entries.count;
        });
      }
      if (last == ~std::uint64_t{0}) return false;
      cursor = last + 1;
    }
    return true;
  }

  // At the first entry with at least this code.
  Cursor lower_bound(std::uint64_t code) const { return Cursor(&tree_, code); }
  Cursor begin() const { return lower_bound(0); }

  // The entry with the least code from `from` on, or the greatest one up to `from`. False: there is
  // none.
  bool ceiling(std::uint64_t from, std::uint64_t& code, Value& value) const {
    return index::ceiling(tree_, from, code, value);
  }
  bool floor(std::uint64_t from, std::uint64_t& code, Value& value) const {
    return index::floor(tree_, from, code, value);
  }

  // Entries with lower codes, and the entry with so many (false: there are no more). `sums` are
  // this map's alone, and kept between calls.
  std::size_t rank(std::uint64_t code, LeafSums& sums) const
    requires(!Sharing::kShared)
  {
    return sums.rank(tree_, code);
  }
  bool select(std::size_t position, std::uint64_t& code, Value& value, LeafSums& sums) const
    requires(!Sharing::kShared)
  {
    return sums.select(tree_, position, code, value);
  }

  // For iterators: the entry of a code that a lookup gave, the first entry from a code on, and past
  // the last one.
  Place place(std::uint64_t code, const Value& value) const { return Place(&tree_, code, value); }
  Place first_from(std::uint64_t code) const { return Place::first_from(&tree_, code); }
  Place past_last() const { return Place(&tree_); }

  // False: the map is empty.
  bool min(std::uint64_t& code) const {
    Value unused;
    return ceiling(0, code, unused);
  }
  bool max(std::uint64_t& code) const {
    [[maybe_unused]] const auto pin = tree_.state.pin();
    return last_below(tree_.root(), code);
  }
  std::size_t size() const { return tree_.size(); }
  bool empty() const { return size() == 0; }

  // Batches: the same for each code in turn, faster as memory accesses overlap. An exception leaves
  // the changes made for the codes before.

  // Sets `found[i]`, and if it is true `out[i]`; returns how many are.
  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    [[maybe_unused]] const auto pin = tree_.state.pin();
    std::size_t hits = 0;
    in_batches<false>(codes, count, [&](Word word, const void* home, std::size_t i) {
      bool there = false;
      if (word.kind() == Kind::hashed) {
        const HashedLeaf<Value, Sharing> leaf(word);
        tree_.state.read(word.to(), [&] { there = leaf.get(codes[i], home, out[i]); });
      } else {
        there = get_from(word, codes[i], out[i]);
      }
      found[i] = there;
      hits += there;
    });
    return hits;
  }
  // Returns how many codes are new.
  std::size_t insert_or_assign(const std::uint64_t* codes, const Value* values, std::size_t count) {
    std::size_t fresh = 0;
    const Entries<Value> entries{codes, values, count};
    in_batches<true>(codes, count, [&](Word word, const void*, std::size_t i) {
      fresh += put_into(word, codes[i], entries.value(i), true);
    });
    return fresh;
  }
  // Returns how many codes were there.
  std::size_t erase(const std::uint64_t* codes, std::size_t count) {
    std::size_t erased = 0;
    in_batches<true>(codes, count, [&](Word word, const void*, std::size_t i) {
      erased += erase_from(word, codes[i]);
    });
    return erased;
  }

  // Erases the entries from `first` to `last`, both included, for which `matches(code, value)` is
  // true. Returns how many. If it throws, the matching entries before are erased.
  template <class Matches>
  std::size_t erase_range(std::uint64_t first, std::uint64_t last, const Matches& matches) {
    std::size_t erased = 0;
    std::array<std::uint64_t, kErasedAtOnce> codes;
    std::array<Value, kErasedAtOnce> values;
    for (bool more = first <= last; more;) {
      const auto count = read(first, kErasedAtOnce, false, codes.data(), values.data());
      more = count == kErasedAtOnce && codes[count - 1] < last;
      if (more) first = codes[count - 1] + 1;
      std::size_t matching = 0;
      try {
        for (std::size_t i = 0; i < count && codes[i] <= last; ++i) {
          if (matches(codes[i], values[i])) codes[matching++] = codes[i];
        }
      } catch (...) {
        erase(codes.data(), matching);
        throw;
      }
      erased += erase(codes.data(), matching);
    }
    return erased;
  }

  Allocator allocator() const { return tree_.memory.allocator(); }
  const Configuration& configuration() const { return tree_.configuration; }
  // For leaves made from now on. Throws std::invalid_argument.
  void configure(const Configuration& configuration) {
    configuration.validate();
    tree_.configuration = configuration;
  }

  // Makes leaves from the code `cursor` on anew by the configuration, about as many as have
  // `most_keys` keys, and moves the cursor; false: the end is reached.
  bool convert(std::uint64_t& cursor, std::size_t most_keys) {
    std::size_t keys = 0;
    while (keys < most_keys) {
      if (tree_.root().none()) return false;
      keys += 1 + Conversion<Value, Sharing, Allocator>(tree_).convert(cursor);
      if (cursor == ~std::uint64_t{0}) return false;
      ++cursor;
    }
    return true;
  }

  Statistics statistics() const { return Inspector<Value, Sharing, Allocator>(tree_).statistics(); }
  // Throws std::logic_error naming the node and the invariant that is broken.
  void verify() const { Inspector<Value, Sharing, Allocator>(tree_).verify(); }

  void clear() {
    const auto old = tree_.root();
    tree_.state.expect(tree_.blocks_below(old));
    tree_.set_root(Word());
    tree_.set_size(0);
    tree_.release_all(old);
    tree_.state.reclaim_all(tree_.memory);
    if constexpr (!Sharing::kShared) tree_.release_memory();
  }

  // Makes the map anew, in the memory that it needs; the rest goes back to the allocator.
  void shrink_to_fit()
    requires(!Sharing::kShared)
  {
    auto statistics = tree_.statistics;
    ++statistics.changes;
    statistics.moved_keys += size();
    statistics.largest_change_keys =
        std::max<std::uint64_t>(statistics.largest_change_keys, size());
    become_copy(*this, allocator());
    tree_.statistics = statistics;
  }

 private:
  // Memory that a map keeps, after erasing, in any case; and, as a multiple of its entries' bytes.
  static constexpr std::size_t kKeptBytes = std::size_t{1} << 19;
  static constexpr std::size_t kKeptShare = 4;

  // On the stack: of large values fewer.
  static constexpr std::size_t kErasedAtOnce =
      std::clamp<std::size_t>((std::size_t{1} << 16) / sizeof(Value), 1, 512);

  bool get_from(Word word, std::uint64_t code, Value& out) const {
    if (word.none()) return false;
    return with_leaf<Value, Sharing>(word, [&](auto leaf) {
      bool found = false;
      tree_.state.read(word.to(), [&] { found = leaf.get(code, out); });
      return found;
    });
  }

  // Readers see that a leaf changes only where they could see it half changed.
  template <class LeafType, class Action>
  auto write_entry(Word word, const LeafType&, const Action& action) {
    if constexpr (kPutsAreAtomic<LeafType>) return action();
    return tree_.state.write(word.to(), action);
  }

  // As `scan`. `few`: as of LeafReader.
  std::size_t read(std::uint64_t from, std::size_t most, bool few, std::uint64_t* codes,
                   Value* values) const {
    LeafReader<Value, Sharing, Allocator> reader(&tree_, from, few);
    EntryBuffer<Value> to{codes, values, 0};
    while (to.count < most && !reader.ended()) {
      reader.read(most - to.count, to, [](std::size_t) {});
    }
    return to.count;
  }

  bool put(std::uint64_t code, const Value& value, bool assign) {
    return put_into(tree_.leaf(code), code, value, assign);
  }

  bool put_into(Word word, std::uint64_t code, const Value& value, bool assign) {
    auto outcome = put_if_room(word, code, value, assign);
    if (outcome == Outcome::full) outcome = put_with_room(code, value, assign);
    return outcome == Outcome::done;
  }

  Outcome put_if_room(Word word, std::uint64_t code, const Value& value, bool assign) {
    if (word.none()) return Outcome::full;
    const auto outcome = with_leaf<Value, Sharing>(word, [&](auto leaf) {
      return write_entry(word, leaf, [&] { return leaf.insert(code, value, assign); });
    });
    if (outcome == Outcome::done) {
      tree_.forget_order(word);
      tree_.set_size(tree_.size() + 1);
    }
    return outcome;
  }

  [[gnu::noinline]] Outcome put_with_room(std::uint64_t code, const Value& value, bool assign) {
    const Value stored = value;  // of one of this map's, which moves
    for (;;) {
      make_room(code);
      const auto outcome = put_if_room(tree_.leaf(code), code, stored, assign);
      if (outcome != Outcome::full) return outcome;
    }
  }

  bool erase_from(Word word, std::uint64_t code) {
    if (word.none()) return false;
    const auto outcome = with_leaf<Value, Sharing>(word, [&](auto leaf) {
      return tree_.state.write(word.to(), [&] { return leaf.erase(code); });
    });
    if (outcome == Outcome::absent) return false;
    tree_.forget_order(word);
    tree_.set_size(tree_.size() - 1);
    if (outcome == Outcome::sparse) compact(code);
    return true;
  }

  // Calls `action` for each code with its leaf and its home there, found in advance. A change of
  // structure, which only a batch of changes can make, makes the leaves found before invalid.
  template <bool kChanges, class Action>
  void in_batches(const std::uint64_t* codes, std::size_t count, const Action& action) const {
    BatchLeaves leaves;
    for (std::size_t first = 0; first < count; first += kBatch) {
      const auto part = std::min(kBatch, count - first);
      find_leaves(tree_, codes + first, part, leaves);
      const auto changes = kChanges ? tree_.statistics.changes : 0;
      for (std::size_t i = 0; i < part; ++i) {
        const bool valid = !kChanges || tree_.statistics.changes == changes;
        const auto word = valid ? leaves.words[i] : tree_.leaf(codes[first + i]);
        action(word, leaves.homes[i], first + i);
      }
    }
  }

  [[gnu::noinline]] void make_room(std::uint64_t code) {
    if (tree_.root().none()) {
      build(nullptr, nullptr, 0);
      return;
    }
    tree_.limit_orders();
    Change<Value, Sharing, Allocator>(tree_).make_room(code);
  }

  // Only saves memory: an erase does not fail for want of it. What is left in far more memory than
  // it needs is made anew, if it is no more than one change may move.
  [[gnu::noinline]] void compact(std::uint64_t code) noexcept {
    try {
      Change<Value, Sharing, Allocator>(tree_).compact(code);
      if constexpr (!Sharing::kShared) {
        const auto needed = size() * (sizeof(code) + value_bytes<Value>);
        const auto most = std::max(kKeptBytes, kKeptShare * needed);
        if (size() <= kMostMovedKeys && tree_.memory.bytes() > most) shrink_to_fit();
      }
    } catch (...) {  // NOLINT: the leaf remains as large as it is
    }
  }

  bool last_below(Word word, std::uint64_t& code) const {
    if (word.none()) return false;
    if (word.inner()) {
      for (auto slot = slot_count(word); slot-- > 0;) {
        const Word child(Sharing::load(slots_of(word) + slot));
        if (slot + 1 < slot_count(word) &&
            child.bits() == Sharing::load(slots_of(word) + slot + 1)) {
          continue;
        }
        if (last_below(child, code)) return true;
      }
      return false;
    }
    return with_leaf<Value, Sharing>(word, [&](auto leaf) {
      bool any = false;
      tree_.state.read(word.to(), [&] { any = leaf.max(code); });
      return any;
    });
  }

  // `allocator`: this map's, or the other's that goes along.
  void become_copy(const CodeMap& other, const Allocator& allocator) {
    CodeMap copy(other, allocator);
    tree_ = std::move(copy.tree_);
  }

  // Reads the other alone, which threads may look up meanwhile: a scan would sort its log leaves.
  void copy_from(const CodeMap& other) {
    std::vector<std::uint64_t> codes(other.size());
    std::vector<Element<Value>> values(other.size());
    other.scan_down(~std::uint64_t{0}, other.size(), codes.data(), value_array<Value>(values));
    std::reverse(codes.begin(), codes.end());
    std::reverse(values.begin(), values.end());
    build(codes.data(), value_array<Value>(values), codes.size());
  }

  Map tree_;
};

}  // namespace headrace::index
