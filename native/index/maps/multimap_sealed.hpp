// Full leaves of one code that a multimap has taken out of its tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "index/leaves/leaf_log.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

// Blocks of memory remain with the arena they came from, which the calls that release some name.
template <class Value, class Sharing, class Allocator>
class SealedLeaves {
  using Log = LogLeaf<Value, Sharing>;
  template <class T>
  using Rebound = typename std::allocator_traits<Allocator>::template rebind_alloc<T>;
  using Blocks = std::vector<Word, Rebound<Word>>;
  using ByCode =
      std::map<std::uint64_t, Blocks, std::less<>, Rebound<std::pair<const std::uint64_t, Blocks>>>;

 public:
  explicit SealedLeaves(const Allocator& allocator) : by_code_(allocator) {}

  // Leaves keep their order; none is empty.
  void add(std::uint64_t code, Word word) {
    auto& blocks = by_code_.try_emplace(code, Blocks(by_code_.get_allocator())).first->second;
    try {
      blocks.push_back(word);
    } catch (...) {
      if (blocks.empty()) by_code_.erase(code);
      throw;
    }
  }

  bool contains(std::uint64_t code) const { return by_code_.contains(code); }
  template <class Action>
  void each(std::uint64_t code, const Action& action) const {
    const auto at = by_code_.find(code);
    if (at == by_code_.end()) return;
    for (const auto word : at->second) Log(word).each(code, action);
  }
  // action(code, leaf) for all.
  template <class Action>
  void each_leaf(const Action& action) const {
    for (const auto& [code, blocks] : by_code_) {
      for (const auto word : blocks) action(code, Log(word));
    }
  }

  // At most `most` entries of which `matches(value)`; returns how many were erased.
  template <class Arena, class Matches>
  std::size_t erase(Arena& arena, std::uint64_t code, std::size_t most, const Matches& matches) {
    const auto at = by_code_.find(code);
    if (at == by_code_.end()) return 0;
    auto& blocks = at->second;
    std::size_t erased = 0;
    for (auto i = blocks.size(); i-- > 0 && erased < most;) {
      const Log leaf(blocks[i]);
      erased += leaf.erase_each(code, most - erased, matches);
      if (leaf.count() > 0) continue;
      release(arena, blocks[i]);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (blocks.empty()) by_code_.erase(at);
    return erased;
  }
  template <class Arena>
  void clear(Arena& arena) noexcept {
    for (const auto& [code, blocks] : by_code_) {
      for (const auto word : blocks) release(arena, word);
    }
    by_code_.clear();
  }
  void swap(SealedLeaves& other) noexcept { by_code_.swap(other.by_code_); }

  // Entries in ascending order of codes; with `valid`, `code`, `value`, `next`.
  class Cursor {
   public:
    Cursor(const SealedLeaves& leaves, std::uint64_t from)
        : at_(leaves.by_code_.lower_bound(from)), end_(leaves.by_code_.end()) {
      open();
    }
    bool valid() const { return at_ != end_; }
    std::uint64_t code() const { return at_->first; }
    Value value() const { return entries_.value(position_); }
    void next() {
      if (++position_ < entries_.count) return;
      if (++block_ == at_->second.size()) {
        ++at_;
        block_ = 0;
      }
      open();
    }

   private:
    void open() {
      position_ = 0;
      if (valid()) entries_ = Log(at_->second[block_]).entries();
    }
    typename ByCode::const_iterator at_;
    typename ByCode::const_iterator end_;
    std::size_t block_ = 0;
    Entries<Value> entries_;
    std::size_t position_ = 0;
  };

 private:
  template <class Arena>
  static void release(Arena& arena, Word word) noexcept {
    arena.release(word.to(), Log::lines(word));
  }
  ByCode by_code_;
};

}  // namespace headrace::index
