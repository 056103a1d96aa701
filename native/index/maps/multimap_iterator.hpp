// Entries of a multimap in ascending order of keys: those of its tree and of sealed leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "index/maps/code.hpp"
#include "index/maps/multimap_sealed.hpp"
#include "index/memory/sharing.hpp"
#include "index/tree/cursor.hpp"
#include "index/tree/tree.hpp"

namespace headrace::index {

template <class Key, class Value>
struct MultimapItem {
  Key key;
  [[no_unique_address]] Value value;
};

// Reads leaf after leaf; a copy of the entries of one is kept.
template <CodedKey Key, class Value, class Sharing, class Allocator>
class MultimapIterator {
  using Sealed = SealedLeaves<Value, Sharing, Allocator>;

 public:
  using value_type = MultimapItem<Key, Value>;
  using difference_type = std::ptrdiff_t;

  // Entries with codes from `first` to `last`, both included.
  MultimapIterator(const Tree<Value, Sharing, Allocator>& tree, const Sealed& sealed,
                   std::uint64_t first, std::uint64_t last)
      : last_(last), reader_(&tree, first), sealed_(sealed, first) {
    fetch();
  }
  MultimapIterator(MultimapIterator&&) noexcept = default;
  MultimapIterator& operator=(MultimapIterator&&) noexcept = default;

  value_type operator*() const {
    if (in_sealed()) return {decode<Key>(sealed_.code()), sealed_.value()};
    return {decode<Key>(entries_.codes[position_]), entries_.value(position_)};
  }
  MultimapIterator& operator++() {
    if (in_sealed()) {
      sealed_.next();
    } else if (++position_ == entries_.count) {
      fetch();
    }
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const {
    return in_sealed() ? sealed_.code() > last_
                       : position_ == entries_.count || entries_.codes[position_] > last_;
  }

 private:
  // Sealed entries of a code come before those in the tree.
  bool in_sealed() const {
    return sealed_.valid() &&
           (position_ == entries_.count || sealed_.code() <= entries_.codes[position_]);
  }
  void fetch() {
    position_ = 0;
    entries_ = reader_.next(std::numeric_limits<std::size_t>::max());
  }

  std::uint64_t last_;
  LeafCopier<Value, Sharing, Allocator> reader_;
  Entries<Value> entries_;
  std::size_t position_ = 0;
  typename Sealed::Cursor sealed_;
};

}  // namespace headrace::index
