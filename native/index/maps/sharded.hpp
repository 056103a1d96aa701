// A map for many writers: shards by a hash of the code, each with one writer at a time and
// lock-free readers.
//
// Shards by ranges would keep scans in one shard, but writers that all append (time stamps), or all
// change the same region, would wait for each other; here they rarely do, and every shard has its
// part of each region. A scan merges the shards; it shows each of them as it is at some time of the
// scan. A fork waits for changes that other threads have begun: a child's copy is whole.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "index/maps/code_map.hpp"
#include "index/memory/brief_lock.hpp"
#include "index/memory/concurrent.hpp"
#include "process.hpp"

namespace headrace::index {

template <class Value, class Allocator = std::allocator<std::byte>>
class ShardedMap {
 public:
  using Shard = CodeMap<Value, Shared, Allocator>;

  // `shards`: about as many as threads that write, at most 256; a power of two is taken.
  explicit ShardedMap(std::size_t shards, const Configuration& configuration = {},
                      const Allocator& allocator = {}) {
    if (shards < 1 || shards > 256) {
      throw std::invalid_argument("index: shards is " + std::to_string(shards) +
                                  ", needs 1 to 256");
    }
    shards = std::bit_ceil(shards);
    shards_.reserve(shards);
    for (std::size_t i = 0; i < shards; ++i) {
      shards_.push_back(std::make_unique<Locked>(configuration, allocator));
    }
    shift_ = 64 - static_cast<unsigned>(std::countr_zero(shards));
    at_forks_ = std::make_unique<LocksAtForks>(shards_);
  }
  ShardedMap(ShardedMap&&) noexcept = default;
  // By swaps: the shards that are replaced end as `other` does, after what locks them at forks.
  ShardedMap& operator=(ShardedMap&& other) noexcept {
    std::swap(shards_, other.shards_);
    std::swap(shift_, other.shift_);
    std::swap(at_forks_, other.at_forks_);
    return *this;
  }

  // Replaces everything; not at the same time as other changes. Codes in any order; of equal ones
  // the last counts.
  void build(const std::uint64_t* codes, const Value* values, std::size_t count, int threads = 1) {
    const Entries<Value> entries{codes, values, count};
    std::vector<std::uint64_t> part_codes;
    std::vector<Element<Value>> part_values;
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      part_codes.clear();
      part_values.clear();
      for (std::size_t i = 0; i < count; ++i) {
        if (shard_of(codes[i]) != shard) continue;
        part_codes.push_back(codes[i]);
        part_values.push_back(entries.value(i));
      }
      const std::lock_guard lock(shards_[shard]->mutex);
      shards_[shard]->map.build(part_codes.data(), value_array<Value>(part_values),
                                part_codes.size(), threads);
    }
  }

  bool get(std::uint64_t code, Value& out) const { return at(code).map.get(code, out); }
  bool insert(std::uint64_t code, const Value& value) {
    return change(code, [&](Shard& map) { return map.insert(code, value); });
  }
  bool insert_or_assign(std::uint64_t code, const Value& value) {
    return change(code, [&](Shard& map) { return map.insert_or_assign(code, value); });
  }
  bool update(std::uint64_t code, const Value& value) {
    return change(code, [&](Shard& map) { return map.update(code, value); });
  }
  // True: the code is new, with this value. `out` is the value that it has.
  bool find_or_insert(std::uint64_t code, const Value& value, Value& out) {
    return change(code, [&](Shard& map) { return map.find_or_insert(code, value, out); });
  }
  bool erase(std::uint64_t code) {
    return change(code, [&](Shard& map) { return map.erase(code); });
  }
  // Erases a code, and sets `out` to the value that it had. False: it is not there.
  bool extract(std::uint64_t code, Value& out) {
    return change(code, [&](Shard& map) { return map.get(code, out) && map.erase(code); });
  }

  // Batches, as of CodeMap; each shard is locked once for all of its codes. One shard after the
  // other: what is changed before an exception is not of the first codes.
  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    std::vector<std::size_t> order;
    std::vector<std::uint64_t> part;
    std::size_t hits = 0;
    each_shard(codes, count, order, part, [&](std::size_t shard, std::size_t first) {
      std::vector<Element<Value>> values(part.size());
      const auto there = std::make_unique<bool[]>(part.size());
      hits += shards_[shard]->map.get(part.data(), part.size(), value_array<Value>(values),
                                      there.get());
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto to = order[first + i];
        found[to] = there[i];
        if (there[i]) out[to] = values[i];
      }
    });
    return hits;
  }
  std::size_t insert_or_assign(const std::uint64_t* codes, const Value* values, std::size_t count) {
    std::vector<std::size_t> order;
    std::vector<std::uint64_t> part;
    const Entries<Value> entries{codes, values, count};
    std::size_t fresh = 0;
    each_shard(codes, count, order, part, [&](std::size_t shard, std::size_t first) {
      std::vector<Element<Value>> part_values;
      for (std::size_t i = 0; i < part.size(); ++i) {
        part_values.push_back(entries.value(order[first + i]));
      }
      const std::lock_guard lock(shards_[shard]->mutex);
      fresh += shards_[shard]->map.insert_or_assign(part.data(), value_array<Value>(part_values),
                                                    part.size());
    });
    return fresh;
  }
  std::size_t erase(const std::uint64_t* codes, std::size_t count) {
    std::vector<std::size_t> order;
    std::vector<std::uint64_t> part;
    std::size_t erased = 0;
    each_shard(codes, count, order, part, [&](std::size_t shard, std::size_t) {
      const std::lock_guard lock(shards_[shard]->mutex);
      erased += shards_[shard]->map.erase(part.data(), part.size());
    });
    return erased;
  }

  // Up to `most` entries in ascending order from `from` on; returns how many.
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    std::vector<typename Shard::Cursor> cursors;
    cursors.reserve(shards_.size());
    for (const auto& shard : shards_) cursors.push_back(shard->map.lower_bound(from));
    std::size_t count = 0;
    for (; count < most; ++count) {
      typename Shard::Cursor* lowest = nullptr;
      for (auto& cursor : cursors) {
        if (!cursor.valid()) continue;
        if (lowest == nullptr || cursor.code() < lowest->code()) lowest = &cursor;
      }
      if (lowest == nullptr) break;
      codes[count] = lowest->code();
      if constexpr (value_bytes<Value> != 0) values[count] = lowest->value();
      lowest->next();
    }
    return count;
  }

  bool min(std::uint64_t& code) const {
    return best(
        code, [](const Shard& map, std::uint64_t& one) { return map.min(one); },
        [](std::uint64_t a, std::uint64_t b) { return a < b; });
  }
  bool max(std::uint64_t& code) const {
    return best(
        code, [](const Shard& map, std::uint64_t& one) { return map.max(one); },
        [](std::uint64_t a, std::uint64_t b) { return a > b; });
  }
  std::size_t size() const {
    std::size_t total = 0;
    for (const auto& shard : shards_) total += shard->map.size();
    return total;
  }
  std::size_t shards() const { return shards_.size(); }
  std::size_t bytes() const {
    std::size_t total = 0;
    for (const auto& shard : shards_) {
      const std::lock_guard lock(shard->mutex);
      total += shard->map.statistics().bytes;
    }
    return total;
  }

  void verify() const {
    for (const auto& shard : shards_) {
      const std::lock_guard lock(shard->mutex);
      shard->map.verify();
    }
  }

 private:
  // Apart by the lines that adjacent prefetching pairs; the lock and what most operations use of
  // the map are in the first one.
  struct alignas(2 * kLineBytes) Locked {
    Locked(const Configuration& configuration, const Allocator& allocator)
        : map(configuration, allocator) {}
    mutable detail::BriefLock mutex;
    Shard map;
  };

  // Holds all locks while a thread forks. Apart from the map, which can be moved.
  class LocksAtForks final : public ForkListener {
   public:
    explicit LocksAtForks(const std::vector<std::unique_ptr<Locked>>& shards) {
      const Hold hold;
      for (const auto& shard : shards) locks_.push_back(&shard->mutex);
    }
    void before_fork() noexcept override {
      for (auto* lock : locks_) lock->lock();
    }
    void after_fork_in_parent() noexcept override {
      for (auto* lock : locks_) lock->unlock();
    }
    void after_fork_in_child() noexcept override { after_fork_in_parent(); }

   private:
    std::vector<detail::BriefLock*> locks_;
  };

  // Other bits of the hash than those that place a code in its leaf.
  std::size_t shard_of(std::uint64_t code) const {
    return shift_ == 64 ? 0 : scatter(code ^ 0x5851'f42d'4c95'7f2d) >> shift_;
  }
  Locked& at(std::uint64_t code) const { return *shards_[shard_of(code)]; }

  template <class Action>
  bool change(std::uint64_t code, const Action& action) {
    auto& shard = at(code);
    const std::lock_guard lock(shard.mutex);
    return action(shard.map);
  }

  // Groups codes by shard, in their order, and calls `action(shard, first)` with those of each in
  // `part`; their numbers are in `order` from `first` on.
  template <class Action>
  void each_shard(const std::uint64_t* codes, std::size_t count, std::vector<std::size_t>& order,
                  std::vector<std::uint64_t>& part, const Action& action) const {
    std::vector<std::size_t> starts(shards_.size() + 1);
    for (std::size_t i = 0; i < count; ++i) ++starts[shard_of(codes[i]) + 1];
    for (std::size_t i = 0; i < shards_.size(); ++i) starts[i + 1] += starts[i];
    order.resize(count);
    auto next = starts;
    for (std::size_t i = 0; i < count; ++i) order[next[shard_of(codes[i])]++] = i;
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      part.clear();
      for (auto i = starts[shard]; i < starts[shard + 1]; ++i) part.push_back(codes[order[i]]);
      if (!part.empty()) action(shard, starts[shard]);
    }
  }

  template <class Ask, class Better>
  bool best(std::uint64_t& code, const Ask& ask, const Better& better) const {
    bool any = false;
    for (const auto& shard : shards_) {
      std::uint64_t one = 0;
      if (!ask(shard->map, one)) continue;
      if (!any || better(one, code)) code = one;
      any = true;
    }
    return any;
  }

  std::vector<std::unique_ptr<Locked>> shards_;
  unsigned shift_ = 64;
  std::unique_ptr<LocksAtForks> at_forks_;  // destroyed before the locks
};

}  // namespace headrace::index
