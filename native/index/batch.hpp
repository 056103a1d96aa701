// The way to the leaves of many codes at once: while the memory that one code needs next is
// fetched, the others go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "index/tree.hpp"

namespace headrace::index {

// Codes whose ways are interleaved: enough to cover a memory access by the work for the others,
// few enough for their lines to remain in the first-level cache.
constexpr std::size_t kBatch = 32;
using BatchWords = std::array<Word, kBatch>;

inline void prefetch(const void* address) { __builtin_prefetch(address); }

// Finds the leaves of at most kBatch codes, and prefetches where in them the codes may be.
template <class Value, class Sharing, class Allocator>
void find_leaves(const Tree<Value, Sharing, Allocator>& tree, const std::uint64_t* codes,
                 std::size_t count, BatchWords& words) {
  std::array<const std::uint64_t*, kBatch> slots;
  words.fill(tree.root());
  for (bool inner = words[0].inner(); inner;) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!words[i].inner()) continue;
      slots[i] = slots_of(words[i]) + slot_in(words[i], codes[i]);
      prefetch(slots[i]);
    }
    inner = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (!words[i].inner()) continue;
      words[i] = Word(Sharing::load(slots[i]));
      if (words[i].kind() == Kind::hashed) {
        prefetch(HashedLeaf<Value, Sharing>(words[i]).home(codes[i]));
      } else {
        prefetch(words[i].to());
        inner |= words[i].inner();
      }
    }
  }
  // Other leaves have a header, which is there by now.
  for (std::size_t i = 0; i < count; ++i) {
    if (words[i].none() || words[i].kind() == Kind::hashed) continue;
    with_leaf<Value, Sharing>(words[i], [&](auto leaf) { prefetch(leaf.home(codes[i])); });
  }
}

}  // namespace headrace::index
