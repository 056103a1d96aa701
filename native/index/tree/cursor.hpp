// Ordered reading: from leaf to leaf by code. Entries are copied, and sorted where a leaf has them
// in no order.
//
// A cursor keeps codes, no positions: inserts and erases do not invalidate it. It may or may not
// show keys that were inserted or erased after it copied their leaf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "index/tree/tree.hpp"
#include "index/tree/unordered.hpp"

namespace headrace::index {

// Entries of one leaf after another, in ascending order.
template <class Value, class Sharing, class Allocator>
class LeafReader {
  using Map = Tree<Value, Sharing, Allocator>;
  using Unordered = UnorderedEntries<Value, Allocator>;

 public:
  // `few`: so few entries are read that leaves are likely to be read again; their orders are kept.
  LeafReader(const Map* tree, std::uint64_t from, bool few) : tree_(tree), from_(from), few_(few) {}

  bool ended() const { return ended_; }

  // Appends the lowest `most` entries that are left of the next leaf, perhaps none. First calls
  // `reserve` with their greatest count.
  template <class Reserve>
  void read(std::size_t most, EntryBuffer<Value>& to, const Reserve& reserve) {
    [[maybe_unused]] const auto pin = tree_->state.pin();
    std::uint64_t last = 0;
    const auto word = tree_->leaf(from_, last);
    if (!word.none()) {
      const auto before = to.count;
      const bool all = with_leaf<Value, Sharing>(word, [&](auto leaf) {
        reserve(std::min(most, leaf.capacity()));
        if constexpr (requires { leaf.sort(nullptr); }) {
          return read_log(leaf, most, to);
        } else if constexpr (kInOrder<Value, decltype(leaf)>) {
          return read_in_order(word, leaf, most, last, to);
        } else {
          return read_unordered(word, leaf, most, last, to);
        }
      });
      if (!all && to.count > before) last = to.codes[to.count - 1];
    }
    ended_ = last == ~std::uint64_t{0};
    from_ = last + 1;
  }

 private:
  // These return whether the leaf has no more entries than they appended.

  // The first scan of a log leaf after inserts puts its entries in order.
  template <class LeafType>
  bool read_log(const LeafType& leaf, std::size_t most, EntryBuffer<Value>& to) {
    if (leaf.out_of_order() != 0) {
      Unordered memory(leaf.out_of_order(), tree_->memory.allocator());
      leaf.sort(memory.pairs());
    }
    const auto before = to.count;
    leaf.scan_in_order(from_, most, to);
    return to.count - before < most;
  }

  template <class LeafType>
  bool read_in_order(Word word, const LeafType& leaf, std::size_t most, std::uint64_t last,
                     EntryBuffer<Value>& to) {
    const auto before = to.count;
    tree_->state.read(word.to(), [&] {
      to.count = before;
      leaf.scan(from_, most, to);
    });
    const bool all = to.count - before < most;
    if constexpr (Sharing::kShared) {
      while (to.count > before && to.codes[to.count - 1] > last) --to.count;
    }
    return all;
  }

  template <class LeafType>
  bool read_unordered(Word word, const LeafType& leaf, std::size_t most, std::uint64_t last,
                      EntryBuffer<Value>& to) {
    if constexpr (!Sharing::kShared && kHasPlaces<LeafType>) {
      bool all = false;
      const auto append = [&](const LeafOrder& order) {
        all = order.append_lowest(leaf, from_, most, to);
      };
      if (few_ && tree_->with_order(word, leaf, append)) return all;
    }
    Unordered found(leaf.capacity(), tree_->memory.allocator());
    tree_->state.read(word.to(), [&] { found.gather(leaf, from_); });
    if constexpr (Sharing::kShared) found.drop_above(last);
    return found.append_lowest(most, to);
  }

  const Map* tree_;
  std::uint64_t from_;
  bool few_;
  bool ended_ = false;
};

// The same, each leaf's entries copied to memory of its own.
template <class Value, class Sharing, class Allocator>
class LeafCopier {
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  LeafCopier(const Tree<Value, Sharing, Allocator>* tree, std::uint64_t from)
      : reader_(tree, from, false),
        codes_(tree->memory.allocator()),
        values_(tree->memory.allocator()) {}

  // Entries of the next leaf that has some, the lowest `most` of them; none: the end. They remain
  // until the next call.
  Entries<Value> next(std::size_t most) {
    EntryBuffer<Value> to;
    while (to.count == 0 && !reader_.ended()) {
      reader_.read(most, to, [&](std::size_t count) { reserve(count, to); });
    }
    return to;
  }

 private:
  void reserve(std::size_t count, EntryBuffer<Value>& to) {
    if (codes_.size() < count) {
      codes_.resize(count);
      if constexpr (value_bytes<Value> != 0) values_.resize(count);
    }
    to = {codes_.data(), value_array<Value>(values_), 0};
  }

  LeafReader<Value, Sharing, Allocator> reader_;
  Vector<std::uint64_t> codes_;
  Vector<Element<Value>> values_;
};

// An entry of the map, and the way to the next one.
template <class Value, class Sharing, class Allocator>
class BasicCursor {
  static constexpr std::size_t kAtOnce = 256;

 public:
  BasicCursor(const Tree<Value, Sharing, Allocator>* tree, std::uint64_t from)
      : reader_(tree, from) {
    fetch();
  }

  bool valid() const { return position_ < entries_.count; }  // false: past the last entry
  std::uint64_t code() const { return entries_.codes[position_]; }
  Value value() const { return entries_.value(position_); }
  void next() {
    if (++position_ == entries_.count) fetch();
  }

  // Copying one reads its leaf again.
  BasicCursor(BasicCursor&&) noexcept = default;
  BasicCursor& operator=(BasicCursor&&) noexcept = default;

 private:
  void fetch() {
    entries_ = reader_.next(kAtOnce);
    position_ = 0;
  }
  LeafCopier<Value, Sharing, Allocator> reader_;
  Entries<Value> entries_;
  std::size_t position_ = 0;
};

}  // namespace headrace::index
