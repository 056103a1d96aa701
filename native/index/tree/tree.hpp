// The tree: its memory, the way from the root to a leaf, and what changes of it are made of.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/configuration.hpp"
#include "index/leaves/leaves.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"
#include "index/tree/leaf_orders.hpp"
#include "index/tree/node.hpp"

namespace headrace::index {

// One inner node on the way to a leaf, and the run of its slots that lead on.
struct Step {
  Word node;
  Range range;
  std::uint32_t first = 0;
  std::uint32_t end = 0;

  Range child_range() const { return range_of(node, range, first, end); }
};

template <class Value, class Sharing, class Allocator>
class Tree {
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

  // Writers store the size at every insert, beside the lock of a shard if there is one; readers
  // need the root, in another line, which then stays in their cores' caches.
  std::uint64_t size_ = 0;
  struct Apart {
    std::byte bytes[kLineBytes - sizeof(std::uint64_t)];
  };
  [[no_unique_address]] std::conditional_t<Sharing::kShared, Apart, std::tuple<>> apart_;
  std::uint64_t root_ = 0;
  using Orders = std::conditional_t<Sharing::kShared, NoLeafOrders, LeafOrders<Allocator>>;
  [[no_unique_address]] mutable Orders orders_;

 public:
  [[no_unique_address]] typename Sharing::State state;
  using Memory = Arena<Allocator>;
  struct Block {
    Line* lines;
    std::size_t count;
  };

  Tree(const Configuration& chosen, const Allocator& allocator)
      : configuration(chosen), memory(allocator) {}
  Tree(Tree&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        root_(std::exchange(other.root_, 0)),
        state(std::move(other.state)),
        configuration(other.configuration),
        memory(std::move(other.memory)),
        statistics(std::exchange(other.statistics, {})),
        scratch_(std::exchange(other.scratch_, nullptr)),
        scratch_lines_(std::exchange(other.scratch_lines_, 0)),
        version_(other.version_) {
    if constexpr (!Sharing::kShared) orders_.swap(other.orders_);
  }
  Tree& operator=(Tree&& other) noexcept {
    std::swap(configuration, other.configuration);
    memory.swap(other.memory);
    std::swap(state, other.state);
    std::swap(statistics, other.statistics);
    std::swap(root_, other.root_);
    std::swap(size_, other.size_);
    if constexpr (!Sharing::kShared) orders_.swap(other.orders_);
    std::swap(scratch_, other.scratch_);
    std::swap(scratch_lines_, other.scratch_lines_);
    version_ = other.version_ = std::max(version_, other.version_) + 1;
    return *this;
  }
  ~Tree() {
    forget_orders();
    release_large(root());
  }

  Word root() const { return Word(Sharing::load(&root_)); }
  void set_root(Word word) { Sharing::store(&root_, word.bits()); }

  std::size_t size() const { return Sharing::load(&size_); }
  void set_size(std::size_t size) {
    Sharing::store(&size_, size);
    if constexpr (!Sharing::kShared) ++version_;
  }

  // Leaves of the configured type that so many keys have, about.
  std::size_t expected_leaves() const { return 2 * size() / most_keys(configuration) + 1; }

  // Calls `action` with the order of a leaf that has none itself; false: none is kept.
  template <class LeafType, class Action>
  bool with_order(Word word, const LeafType& leaf, const Action& action) const
    requires(!Sharing::kShared)
  {
    return orders_.with_order(word, leaf, expected_leaves(), memory.allocator(), action);
  }
  // Of a leaf whose entries change, or that ends.
  void forget_order(Word word) noexcept {
    if constexpr (!Sharing::kShared) {
      if (orders_.any()) [[unlikely]]
        orders_.drop(word, memory.allocator());
    }
  }
  void forget_orders() noexcept {
    if constexpr (!Sharing::kShared) orders_.clear(memory.allocator());
  }
  // Forgets all of them where the table of orders has become too small.
  void limit_orders() noexcept {
    if constexpr (!Sharing::kShared) {
      if (orders_.outgrown(expected_leaves())) forget_orders();
    }
  }
  template <class Action>
  void each_order(const Action& action) const {
    if constexpr (!Sharing::kShared) orders_.each(action);
  }

  // Of all nodes, leaves and their orders, and of free blocks between them.
  std::size_t bytes() const {
    if constexpr (Sharing::kShared) {
      return memory.bytes();
    } else {
      return memory.bytes() + orders_.bytes();
    }
  }

  // Another one after any change of keys or of structure; values may be replaced within one.
  // Readers beside a writer cannot use it: what it says is past when they have read it.
  std::uint64_t version() const
    requires(!Sharing::kShared)
  {
    return version_;
  }

  // The leaf, perhaps `none`, that has this code.
  [[gnu::always_inline]] Word leaf(std::uint64_t code) const {
    auto word = root();
    while (word.inner()) word = child(word, code);
    return word;
  }

  [[gnu::always_inline]] static Word child(Word node, std::uint64_t code) {
    return Word(Sharing::load(slots_of(node) + slot_in(node, code)));
  }

  // The same, and the last code that belongs to the leaf.
  Word leaf(std::uint64_t code, std::uint64_t& last_code) const {
    Range range;
    const auto word = descend<true>(code, range);
    last_code = range.high;
    return word;
  }
  // The same, and the first code that belongs to the leaf.
  Word leaf_from(std::uint64_t code, std::uint64_t& first_code) const {
    Range range;
    const auto word = descend<false>(code, range);
    first_code = range.low;
    return word;
  }

  // All inner nodes on the way to a leaf. Equal neighbours in slots are one child.
  void trace(std::uint64_t code, Vector<Step>& path) const {
    path.clear();
    Step step{root(), {}, 0, 0};
    while (step.node.inner()) {
      const auto* slots = slots_of(step.node);
      const auto count = static_cast<std::uint32_t>(slot_count(step.node));
      step.first = slot_in(step.node, code);
      step.end = step.first + 1;
      const auto word = slots[step.first];
      while (step.first > 0 && slots[step.first - 1] == word) --step.first;
      while (step.end < count && slots[step.end] == word) ++step.end;
      path.push_back(step);
      step = {Word(word), step.child_range(), 0, 0};
    }
  }

  static Word child_of(const Step& step) { return Word(slots_of(step.node)[step.first]); }

  // Lets slots first .. end - 1 of a node lead to another child.
  static void point(Word node, std::uint32_t first, std::uint32_t end, Word child) {
    auto* slots = slots_of(node);
    for (auto slot = first; slot < end; ++slot) Sharing::store(slots + slot, child.bits());
  }

  static std::size_t lines(Word word) {
    if (word.none()) return 0;
    return word.inner() ? node_lines(word) : leaf_lines<Value, Sharing>(word);
  }

  // Releases one node or leaf, once no reader can see it.
  void retire(Word word) noexcept {
    if (word.none()) return;
    if (!word.inner()) forget_order(word);
    state.retire(memory, word.to(), lines(word));
  }

  // Calls `action` for each child of a node, once for a run of slots.
  template <class Action>
  static void each_child(Word node, Action&& action) {
    const auto* slots = slots_of(node);
    const auto count = static_cast<std::uint32_t>(slot_count(node));
    for (std::uint32_t first = 0, end = 0; first < count; first = end) {
      while (end < count && slots[end] == slots[first]) ++end;
      action(Word(slots[first]), first, end);
    }
  }

  // Calls `action` for every node and leaf under a word, children first.
  template <class Action>
  static void each_below(Word word, const Action& action) {
    if (word.inner()) {
      each_child(word,
                 [&](Word child, std::uint32_t, std::uint32_t) { each_below(child, action); });
    }
    if (!word.none()) action(word);
  }

  std::size_t blocks_below(Word word) const {
    std::size_t blocks = 0;
    each_below(word, [&](Word) { ++blocks; });
    return blocks;
  }

  void release_all(Word word) noexcept {
    each_below(word, [&](Word each) { retire(each); });
  }

  // Gives all memory back: nothing is in it, and no reader sees what was.
  void release_memory() noexcept
    requires(!Sharing::kShared)
  {
    forget_orders();
    memory.release_chunks();
    scratch_ = nullptr;
    scratch_lines_ = 0;
  }

  // One change of structure: blocks that it allocates are released again unless it is kept.
  class Draft {
   public:
    explicit Draft(Tree& tree) : tree_(tree), blocks_(tree.memory.allocator()) {}
    Draft(const Draft&) = delete;
    Draft& operator=(const Draft&) = delete;
    ~Draft() {
      for (const auto& block : blocks_) tree_.memory.release(block.lines, block.count);
    }
    Line* allocate(std::size_t lines) {
      reserve();
      blocks_.push_back({tree_.memory.allocate(lines), lines});
      return blocks_.back().lines;
    }
    Line* allocate_about(std::size_t& lines, std::size_t least) {
      reserve();
      auto* block = tree_.memory.allocate_about(lines, least);
      blocks_.push_back({block, lines});
      return block;
    }
    void keep(std::size_t moved_keys) noexcept {
      blocks_.clear();
      ++tree_.version_;
      auto& statistics = tree_.statistics;
      ++statistics.changes;
      statistics.moved_keys += moved_keys;
      statistics.largest_change_keys =
          std::max<std::uint64_t>(statistics.largest_change_keys, moved_keys);
    }

   private:
    void reserve() { blocks_.reserve(std::max<std::size_t>(8, std::bit_ceil(blocks_.size() + 1))); }
    Tree& tree_;
    Vector<Block> blocks_;
  };

  // Working memory for entries, or anything else, while a change is made: one block that the tree
  // keeps, so that short-lived ones do not break up the memory of leaves.
  class Scratch {
   public:
    Scratch(Tree& tree, std::size_t bytes)
        : tree_(tree), lines_((bytes + kLineBytes - 1) / kLineBytes + 1) {
      kept_ = !tree.scratch_taken_ && lines_ <= kMostKept;
      if (kept_) tree.grow_scratch(lines_);
      block_ = kept_ ? tree.scratch_ : tree.memory.allocate(lines_);
      tree.scratch_taken_ |= kept_;
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
      if (kept_) {
        tree_.scratch_taken_ = false;
      } else {
        tree_.memory.release(block_, lines_);
      }
    }
    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(block_);
    }
    static std::size_t bytes(std::size_t entries) { return entries * (8 + value_bytes<Value>); }
    EntryBuffer<Value> entries(std::size_t most) const {
      auto* codes = as<std::uint64_t>();
      return {codes, reinterpret_cast<Value*>(codes + most), 0};
    }

   private:
    static constexpr std::size_t kMostKept = 1024;
    Tree& tree_;
    std::size_t lines_;
    bool kept_;
    Line* block_;
  };

  Configuration configuration;
  Memory memory;
  Statistics statistics;  // of changes; the rest is counted when it is asked for

 private:
  // The leaf of a code, and the range of codes that it has on one side of it: `kUp` above, else
  // below.
  template <bool kUp>
  Word descend(std::uint64_t code, Range& range) const {
    auto word = root();
    while (word.inner()) {
      auto first = slot_in(word, code);
      auto end = first + 1;
      auto* slots = slots_of(word);
      const Word below(Sharing::load(slots + first));
      if constexpr (kUp) {
        const auto count = slot_count(word);
        while (end < count && Sharing::load(slots + end) == below.bits()) ++end;
      } else {
        while (first > 0 && Sharing::load(slots + first - 1) == below.bits()) --first;
      }
      range = range_of(word, range, first, end);
      word = below;
    }
    return word;
  }

  // The arena releases its chunks; only blocks too large for them have to be found.
  void release_large(Word root) noexcept {
    state.reclaim_all(memory);
    each_below(root, [&](Word word) {
      const auto count = lines(word);
      if (memory.large(count)) memory.release(word.to(), count);
    });
  }

  void grow_scratch(std::size_t lines) {
    if (lines <= scratch_lines_) return;
    lines = std::bit_ceil(lines);
    auto* block = memory.allocate(lines);
    if (scratch_ != nullptr) memory.release(scratch_, scratch_lines_);
    scratch_ = block;
    scratch_lines_ = lines;
  }

  Line* scratch_ = nullptr;
  std::size_t scratch_lines_ = 0;
  bool scratch_taken_ = false;
  std::uint64_t version_ = 0;
};

}  // namespace headrace::index
