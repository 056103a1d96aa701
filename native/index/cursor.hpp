// Ordered reading: from leaf to leaf by code, each leaf's entries copied and sorted.
//
// A cursor keeps codes, no positions: inserts and erases do not invalidate it. It may or may not
// show keys that were inserted or erased after it copied their leaf.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "index/tree.hpp"

namespace headrace::index {

// Entries of one leaf after another, in ascending order.
template <class Value, class Sharing, class Allocator>
class LeafReader {
  using Map = Tree<Value, Sharing, Allocator>;
  using Pair = std::pair<std::uint64_t, Value>;
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  LeafReader(const Map* tree, std::uint64_t from)
      : tree_(tree),
        from_(from),
        codes_(tree->memory.allocator()),
        values_(tree->memory.allocator()),
        order_(tree->memory.allocator()) {}

  // Entries of the next leaf that has some, at most about `most` of them; none: the end. They
  // remain until the next call.
  Entries<Value> next(std::size_t most) {
    while (!ended_) {
      read(most);
      if (buffer_.count != 0) {
        sort(most);
        return buffer_;
      }
    }
    return {};
  }

 private:
  void read(std::size_t most) {
    [[maybe_unused]] const auto pin = tree_->state.pin();
    std::uint64_t last = 0;
    const auto word = tree_->leaf(from_, last);
    buffer_.count = 0;
    if (!word.none()) {
      const bool part = with_leaf<Value, Sharing>(word, [&](auto leaf) {
        if constexpr (requires { leaf.sort(nullptr); }) return read_log(leaf, most);
        constexpr bool in_order = kInOrder<Value, decltype(leaf)>;
        reserve(in_order ? std::min(most, leaf.capacity()) : leaf.capacity());
        tree_->state.read(word.to(), [&] {
          buffer_.count = 0;
          gather_some<Value>(leaf, from_, most, buffer_);
        });
        return in_order;
      });
      if constexpr (Sharing::kShared) drop_above(last);
      // A leaf of which only a part was read may have more.
      if (part && buffer_.count == most) last = buffer_.codes[most - 1];
    }
    ended_ = last == ~std::uint64_t{0};
    from_ = last + 1;
  }

  // A leaf that was just split may still be found for a part of its codes; the others are found
  // again in the leaf that has them now.
  void drop_above(std::uint64_t last) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < buffer_.count; ++i) {
      if (buffer_.codes[i] > last) continue;
      buffer_.codes[kept] = buffer_.codes[i];
      if constexpr (value_bytes<Value> != 0) buffer_.values[kept] = buffer_.values[i];
      ++kept;
    }
    buffer_.count = kept;
  }

  // The first scan of a log leaf after inserts puts its entries in order.
  template <class LeafType>
  bool read_log(const LeafType& leaf, std::size_t most) {
    if (!leaf.in_order()) {
      pairs_.resize(leaf.count());
      leaf.sort(pairs_.data());
    }
    reserve(std::min(most, leaf.count()));
    leaf.scan_in_order(from_, most, buffer_);
    return true;
  }

  void reserve(std::size_t count) {
    if (codes_.size() >= count) return;
    codes_.resize(count);
    if constexpr (value_bytes<Value> != 0) values_.resize(count);
    buffer_.codes = codes_.data();
    buffer_.values = values_.data();
  }

  // Sorts the lowest `most` entries and, unless these are nearly all, leaves the rest to the next
  // call.
  void sort(std::size_t most) {
    if (std::is_sorted(buffer_.codes, buffer_.codes + buffer_.count)) return;
    order_.clear();
    for (std::size_t i = 0; i < buffer_.count; ++i) order_.emplace_back(buffer_.codes[i], i);
    auto end = order_.end();
    if (most < order_.size() / 2) {
      end = order_.begin() + static_cast<std::ptrdiff_t>(most);
      std::nth_element(order_.begin(), end, order_.end());
      from_ = end->first;
      ended_ = false;
    }
    std::sort(order_.begin(), end);
    const auto count = static_cast<std::size_t>(end - order_.begin());
    arrange(count);
  }

  void arrange(std::size_t count) {
    if constexpr (value_bytes<Value> != 0) {
      sorted_values_.resize(std::max(sorted_values_.size(), count));
      for (std::size_t i = 0; i < count; ++i) sorted_values_[i] = values_[order_[i].second];
      std::copy_n(sorted_values_.begin(), count, values_.begin());
    }
    for (std::size_t i = 0; i < count; ++i) codes_[i] = order_[i].first;
    buffer_.count = count;
  }

  const Map* tree_;
  std::uint64_t from_;
  bool ended_ = false;
  Vector<std::uint64_t> codes_;
  Vector<Value> values_;
  Vector<Value> sorted_values_{values_.get_allocator()};
  Vector<std::pair<std::uint64_t, std::uint32_t>> order_;
  Vector<Pair> pairs_{values_.get_allocator()};
  EntryBuffer<Value> buffer_;
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
  LeafReader<Value, Sharing, Allocator> reader_;
  Entries<Value> entries_;
  std::size_t position_ = 0;
};

}  // namespace headrace::index
