// The way to the leaves of many codes at once: while the memory that one code needs next is
// fetched, the others go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "index/tree/tree.hpp"

namespace headrace::index {

// Codes whose ways are interleaved: enough to cover a memory access by the work for the others,
// few enough for their lines to remain in the first-level cache.
constexpr std::size_t kBatch = 32;

// The leaves of at most kBatch codes; of hashed leaves, the line where a code is first looked for.
struct BatchLeaves {
  std::array<Word, kBatch> words;
  std::array<const void*, kBatch> homes;
};

inline void prefetch(const void* address) { __builtin_prefetch(address); }

// Finds the leaves of at most kBatch codes, and prefetches where in them the codes may be.
template <class Value, class Sharing, class Allocator>
void find_leaves(const Tree<Value, Sharing, Allocator>& tree, const std::uint64_t* codes,
                 std::size_t count, BatchLeaves& leaves) {
  auto& words = leaves.words;
  std::array<const std::uint64_t*, kBatch> slots;
  const Word root = tree.root();
  bool hashed = true;  // all leaves
  // Follows slots of nodes to what they lead to. True: some of it is inner nodes.
  const auto follow = [&](std::size_t i) {
    const auto word = words[i] = Word(Sharing::load(slots[i]));
    if (word.kind() == Kind::hashed) {
      prefetch(leaves.homes[i] = HashedLeaf<Value, Sharing>(word).home(codes[i]));
      return false;
    }
    hashed &= word.none();
    prefetch(word.to());
    return word.inner();
  };
  bool inner = false;
  if (root.kind() == Kind::linear) {  // as it mostly is: one model for all codes
    const auto model = root.to<LinearNode>()->model;
    const auto* first = root.to<LinearNode>()->slots();
    for (std::size_t i = 0; i < count; ++i) prefetch(slots[i] = first + model.slot(codes[i]));
    for (std::size_t i = 0; i < count; ++i) inner |= follow(i);
  } else {
    words.fill(root);
    inner = root.inner();
    hashed = false;
  }
  while (inner) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!words[i].inner()) continue;
      prefetch(slots[i] = slots_of(words[i]) + slot_in(words[i], codes[i]));
    }
    inner = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (words[i].inner()) inner |= follow(i);
    }
  }
  if (hashed) return;
  // Other leaves have a header, which is in the cache by now.
  for (std::size_t i = 0; i < count; ++i) {
    if (words[i].none() || words[i].kind() == Kind::hashed) continue;
    with_leaf<Value, Sharing>(words[i], [&](auto leaf) { prefetch(leaf.home(codes[i])); });
  }
}

}  // namespace headrace::index
