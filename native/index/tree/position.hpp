// An entry of a map and the way to its neighbours, for iterators.
//
// A position holds its entry, so it remains usable after any change of the map, and the map's
// version at which it read its leaf. It reads a leaf when it moves: in place, one entry at a time,
// of a gapped leaf, which has its entries in order; else as a run in order, which copies of the
// position share. After a change it finds its leaf again, by code. Readers beside a writer always
// use runs, and may or may not see keys that came or went after a run was read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "index/tree/neighbours.hpp"

namespace headrace::index {

template <class Value, class Sharing, class Allocator>
class Position {
  using Map = Tree<Value, Sharing, Allocator>;
  using Gapped = GappedLeaf<Value, Sharing>;
  using Run = EntryRun<Value, Allocator>;
  static constexpr bool kInPlace = !Sharing::kShared;
  static constexpr std::uint64_t kHighest = ~std::uint64_t{0};
  // Entries of a run: of the leaves of most configurations, all. Longer ones double.
  static constexpr std::size_t kAtOnce = 512;

 public:
  Position() = default;
  // Past the last entry.
  explicit Position(const Map* tree) : tree_(tree) {}
  // At an entry that a lookup gave.
  Position(const Map* tree, std::uint64_t code, const Value& value)
      : tree_(tree), valid_(true), code_(code), value_(value) {}
  // At the first entry from a code on, or past the last one.
  static Position first_from(const Map* tree, std::uint64_t from) {
    Position position(tree);
    position.valid_ = visit_up(*tree, from, [&](Word word, const Range& range) {
      if (kInPlace && word.kind() == Kind::gapped) return position.stands_at_first(word, range);
      return nearest_in_leaf<true>(*tree, word, range, position.code_, position.value_);
    });
    return position;
  }

  // Of the same map.
  Position first() const { return first_from(tree_, 0); }

  bool valid() const { return valid_; }  // false: past the last entry, or of no map
  std::uint64_t code() const { return code_; }
  const Value& value() const { return value_; }

  // Calls `erase`, which erases the entry before this one and changes nothing else: the rest of a
  // run stays usable.
  template <class Erase>
  void after(const Erase& erase) {
    const bool usable = run_ != nullptr && unchanged();
    erase();
    if (!usable) return;
    first_ = place_;
    note_version();
  }

  // Needs a valid position. Throws std::bad_alloc, and stays.
  void next() {
    if (unchanged()) {
      if (!leaf_.none()) {
        const Gapped leaf(leaf_);
        if (stand(leaf, leaf.place_after(place_))) return;
      } else if (run_ != nullptr && place_ + 1 < run_->count()) {
        return stand_in_run(place_ + 1);
      }
    }
    move_up();
  }

  // Needs an entry before. Throws std::bad_alloc, and stays.
  void previous() {
    if (valid_ && unchanged()) {
      if (!leaf_.none()) {
        const Gapped leaf(leaf_);
        if (stand(leaf, leaf.place_before(place_))) return;
      } else if (run_ != nullptr && place_ > first_) {
        return stand_in_run(place_ - 1);
      }
    }
    move_down();
  }

 private:
  bool unchanged() const {
    if constexpr (kInPlace) return version_ == tree_->version();
    return true;
  }
  void note_version() {
    if constexpr (kInPlace) version_ = tree_->version();
  }

  // True, and the position is at the entry: the place has one.
  bool stand(const Gapped& leaf, std::uint32_t place) {
    if (place >= leaf.capacity()) return false;
    place_ = place;
    code_ = leaf.code_at(place);
    value_ = leaf.value_at(place);
    return true;
  }
  template <class PlaceOf>
  bool stands_in(Word word, const PlaceOf& place_of) {
    if constexpr (kInPlace) {
      if (word.kind() != Kind::gapped) return false;
      const Gapped leaf(word);
      if (!stand(leaf, place_of(leaf))) return false;
      leaf_ = word;
      run_.reset();
      note_version();
      return true;
    }
    return false;
  }
  bool stands_at_first(Word word, const Range& range) {
    return stands_in(word, [&](const Gapped& leaf) { return leaf.first_place(range.low); });
  }
  void stand_in_run(std::size_t i) {
    place_ = static_cast<std::uint32_t>(i);
    code_ = run_->code(i);
    value_ = run_->value(i);
  }
  // True, and the position is at one end of the leaf's entries of a range: it has some.
  bool stands_in_run_of(Word word, const Range& range, std::size_t most, bool at_end) {
    auto run = run_.use_count() == 1 ? std::move(run_)
                                     : std::allocate_shared<Run>(tree_->memory.allocator(),
                                                                 tree_->memory.allocator());
    run->read(*tree_, word, range, most);
    if (run->count() == 0) return false;
    run_ = std::move(run);
    leaf_ = Word();
    first_ = 0;
    note_version();
    stand_in_run(at_end ? run_->count() - 1 : 0);
    return true;
  }

  [[gnu::noinline]] void move_up() {
    const auto most = run_ == nullptr ? kAtOnce : std::max(kAtOnce, 2 * run_->count());
    const bool moved =
        code_ != kHighest && visit_up(*tree_, code_ + 1, [&](Word word, const Range& range) {
          if (kInPlace && word.kind() == Kind::gapped) {
            return stands_at_first(word, range);
          }
          return stands_in_run_of(word, range, most, false);
        });
    if (!moved) *this = Position(tree_);
  }

  [[gnu::noinline]] void move_down() {
    const bool moved =
        !(valid_ && code_ == 0) &&
        visit_down(*tree_, valid_ ? code_ - 1 : kHighest, [&](Word word, const Range& range) {
          if (kInPlace && word.kind() == Kind::gapped) {
            return stands_in(word, [&](const Gapped& leaf) { return leaf.last_place(range.high); });
          }
          return stands_in_run_of(word, range, ~std::size_t{0}, true);
        });
    if (moved) {
      valid_ = true;
    } else {
      *this = Position(tree_);
    }
  }

  const Map* tree_ = nullptr;
  bool valid_ = false;
  std::uint32_t place_ = 0;  // in the leaf, or in the run
  std::uint32_t first_ = 0;  // of the run's entries, that may be gone to
  std::uint64_t code_ = 0;
  Value value_{};
  std::uint64_t version_ = 0;
  Word leaf_;  // a gapped leaf that is read in place
  std::shared_ptr<Run> run_;
};

}  // namespace headrace::index
