// The leaf types behind one switch: the type is in the word that leads to the leaf.
//
// Virtual calls would read the leaf's header first, and cost 14% (MAPLE, section 6.4).
//
// A leaf type is a class template <Value, Sharing> made from a word, with get, insert, erase,
// count, gather, broken, home (the address to prefetch), and static functions for its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "index/configuration.hpp"
#include "index/leaf_hashed.hpp"
#include "index/sharing.hpp"
#include "index/word.hpp"

namespace headrace::index {

// Calls `action` with the leaf that the word leads to, which is not `none`.
template <class Value, class Sharing, class Action>
[[gnu::always_inline]] inline decltype(auto) with_leaf(Word word, Action&& action) {
  return action(HashedLeaf<Value, Sharing>(word));
}

template <class Value, class Sharing>
std::size_t leaf_lines(Word word) {
  return with_leaf<Value, Sharing>(word, [word](auto leaf) { return leaf.lines(word); });
}

inline std::size_t most_keys(const Configuration& configuration) {
  const bool small = configuration.leaf == Leaf::hashed || configuration.leaf == Leaf::log;
  return small ? configuration.fragment_keys : configuration.leaf_keys;
}

}  // namespace headrace::index
