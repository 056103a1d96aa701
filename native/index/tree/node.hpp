// Inner nodes: a linear model of the codes, or, where no model separates them, sorted separators.
//
// The model is slot = (code - base) >> shift, kept inside of 0 .. slots - 1: integer arithmetic,
// exact and monotone for all 64 bits (doubles cannot tell neighbours above 2^53 apart). Codes below
// or above the modelled range belong to the first and last slot, so that outliers cost nothing.
// Slopes are powers of two, which makes growth exact: with one bit less of `shift` each slot
// becomes two, with a lower base or a higher count slots are added at either end, and in each case
// all other boundaries stay. As children may cover several slots (as in ALEX), finer slopes would
// gain little.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "index/memory/memory.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

struct Model {
  std::uint64_t base = 0;
  std::uint32_t last = 0;  // slots - 1
  std::uint32_t shift = 0;

  std::uint32_t slot(std::uint64_t code) const {
    const auto offset = code > base ? (code - base) >> shift : 0;
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(offset, last));
  }
  // First code of a slot above 0.
  std::uint64_t first_code(std::uint32_t slot) const {
    return base + (static_cast<std::uint64_t>(slot) << shift);
  }
  std::size_t slots() const { return std::size_t{last} + 1; }
};

// The slots follow the header at once: small nodes are one or two lines.
struct LinearNode {
  Model model;
  std::uint32_t children;    // runs of slots with one child each that has memory, at least
  std::uint32_t built_keys;  // below it when the model was fitted, or counted since
  std::uint32_t deepened;    // leaves below it that became nodes since then

  std::uint64_t* slots() { return reinterpret_cast<std::uint64_t*>(this + 1); }
  static std::size_t lines(std::size_t slots) {
    return (sizeof(LinearNode) + slots * 8 + kLineBytes - 1) / kLineBytes;
  }
};

// Child i has the codes from separator i - 1 (inclusive) to separator i.
struct ComparisonNode {
  static constexpr std::uint32_t kMostChildren = 16;
  std::uint64_t count;  // separators
  std::uint64_t separators[kMostChildren - 1];
  std::uint64_t children[kMostChildren];

  std::uint32_t slot(std::uint64_t code) const {
    std::uint32_t below = 0;
    for (std::uint64_t i = 0; i < count; ++i) below += separators[i] <= code;
    return below;
  }
  static constexpr std::size_t lines() { return (32 * 8) / kLineBytes; }
};
static_assert(sizeof(ComparisonNode) == ComparisonNode::lines() * kLineBytes);

inline std::uint64_t* slots_of(Word node) {
  return node.kind() == Kind::linear ? node.to<LinearNode>()->slots()
                                     : node.to<ComparisonNode>()->children;
}
inline std::size_t slot_count(Word node) {
  return node.kind() == Kind::linear ? node.to<LinearNode>()->model.slots()
                                     : node.to<ComparisonNode>()->count + 1;
}
inline std::uint32_t slot_in(Word node, std::uint64_t code) {
  return node.kind() == Kind::linear ? node.to<LinearNode>()->model.slot(code)
                                     : node.to<ComparisonNode>()->slot(code);
}
inline std::size_t node_lines(Word node) {
  return node.kind() == Kind::linear ? LinearNode::lines(slot_count(node))
                                     : ComparisonNode::lines();
}

// Codes from low to high, both inclusive.
struct Range {
  std::uint64_t low = 0;
  std::uint64_t high = ~std::uint64_t{0};
};

// The part of `range` that belongs to slots first .. end - 1 of a node.
inline Range range_of(Word node, Range range, std::uint32_t first, std::uint32_t end) {
  const auto count = slot_count(node);
  const auto begin_of = [node](std::uint32_t slot) {
    return node.kind() == Kind::linear ? node.to<LinearNode>()->model.first_code(slot)
                                       : node.to<ComparisonNode>()->separators[slot - 1];
  };
  if (first > 0) range.low = std::max(range.low, begin_of(first));
  if (end < count) range.high = std::min(range.high, begin_of(end) - 1);
  return range;
}

}  // namespace headrace::index
