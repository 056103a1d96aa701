// The bound on depth. Splits alone would let some orders of insertion (each batch of keys into a
// small gap between the last ones) deepen one path without end.
//
// As in scapegoat trees: where a leaf becomes deeper than the number of keys allows, a node above
// it is found whose subtree is too high for its leaves, and is made anew. Up to 65,536 keys the
// subtree is built from them; a larger one keeps its leaves and gets separators between them, so
// that no key is moved. The cost is shared by the splits that made the subtree uneven.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/tree/tree.hpp"

namespace headrace::index {

// Inner nodes above a leaf that a tree of so many leaves may have.
inline std::size_t depth_bound(std::size_t leaves) {
  return 4 + static_cast<std::size_t>(std::log2(static_cast<double>(leaves) + 1) / 2);
}

// Leaves under a node in order, each with the first code that leads to it.
template <class Value, class Sharing, class Allocator>
class Router {
  using Map = Tree<Value, Sharing, Allocator>;
  using Draft = typename Map::Draft;
  struct Part {
    std::uint64_t low;
    Word word;
  };
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  Router(Map& tree, Draft& draft) : draft_(draft), parts_(tree.memory.allocator()) {}

  // A node of separators above all leaves below another.
  Word route(Word node, const Range& range) {
    collect(node, range);
    return join(0, parts_.size());
  }

 private:
  static constexpr std::size_t kChildren = 12;  // room for splits

  void collect(Word word, const Range& range) {
    if (word.inner()) {
      Map::each_child(word, [&](Word child, std::uint32_t first, std::uint32_t end) {
        collect(child, range_of(word, range, first, end));
      });
    } else if (!word.none() || parts_.empty()) {  // other empty ranges go to the leaf before them
      parts_.push_back({range.low, word});
    }
  }

  Word join(std::size_t first, std::size_t end) {
    const auto count = end - first;
    if (count == 1) return parts_[first].word;
    auto* node = new (draft_.allocate(ComparisonNode::lines())) ComparisonNode{};
    const auto children = std::min(count, kChildren);
    node->count = children - 1;
    for (std::size_t i = 0; i < children; ++i) {
      const auto begin = first + i * count / children;
      if (i > 0) node->separators[i - 1] = parts_[begin].low;
      node->children[i] = join(begin, first + (i + 1) * count / children).bits();
    }
    return Word(reinterpret_cast<Line*>(node), Kind::comparison);
  }

  Draft& draft_;
  Vector<Part> parts_;
};

}  // namespace headrace::index
