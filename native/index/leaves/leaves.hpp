// The leaf types behind one switch: the type is in the word that leads to the leaf.
//
// Virtual calls would read the leaf's header first, and cost 14% (MAPLE, section 6.4).
//
// A leaf type is a class template <Value, Sharing> made from a word, with find, get, insert, erase,
// count, gather, broken, home (the address to prefetch), and a static function for its memory; one
// whose entries are in order has `scan` in addition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/configuration.hpp"
#include "index/leaves/leaf_gapped.hpp"
#include "index/leaves/leaf_hashed.hpp"
#include "index/leaves/leaf_log.hpp"
#include "index/leaves/perfect_leaf.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

// Calls `action` with the leaf that the word leads to, which is not `none`.
template <class Value, class Sharing, class Action>
[[gnu::always_inline]] inline decltype(auto) with_leaf(Word word, Action&& action) {
  switch (word.kind()) {
    case Kind::log:
      return action(LogLeaf<Value, Sharing>(word));
    case Kind::gapped:
      return action(GappedLeaf<Value, Sharing>(word));
    case Kind::perfect:
      return action(PerfectLeaf<Value, Sharing>(word));
    default:
      return action(HashedLeaf<Value, Sharing>(word));
  }
}

template <class Value, class Sharing>
std::size_t leaf_lines(Word word) {
  return with_leaf<Value, Sharing>(word, [word](auto leaf) { return leaf.lines(word); });
}

template <class Value, class Sharing>
std::size_t leaf_count(Word word) {
  return with_leaf<Value, Sharing>(word, [](auto leaf) { return leaf.count(); });
}

// True of leaf types that give their entries in order.
template <class Value, class LeafType>
constexpr bool kInOrder = requires(const LeafType& leaf, EntryBuffer<Value>& to) {
  leaf.scan(std::uint64_t{0}, std::size_t{0}, to);
};

// True of leaf types of which a reader may see an insert or an update at any point of it: entries
// stay where they are, and a new one is present once its last word, or the count, is stored.
template <class LeafType>
constexpr bool kPutsAreAtomic = requires { requires LeafType::kAtomicPuts; };

inline std::size_t most_keys(const Configuration& configuration) {
  const bool small = configuration.leaf == Leaf::hashed || configuration.leaf == Leaf::log;
  return small ? configuration.fragment_keys : configuration.leaf_keys;
}

}  // namespace headrace::index
