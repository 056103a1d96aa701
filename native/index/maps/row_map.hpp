// Keys and the rows that they have in a table, for many threads: what a server of embeddings looks
// up. Rows are numbered from 0 without gaps; those of erased keys are used again once released.
//
// Lookups take no lock; an insertion or erasure locks the key's shard. A fork waits for calls that
// have begun; in a child, rows that another thread's call had reserved stay unused.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "index/maps/find_or_insert.hpp"
#include "index/maps/key_column.hpp"
#include "index/maps/row_numbers.hpp"
#include "index/maps/sharded.hpp"
#include "process.hpp"

namespace headrace::index {

class RowMap {
 public:
  static constexpr std::int64_t kNoRow = -1;

  // `shards`: 1 to 256, see ShardedMap. Throws std::invalid_argument.
  RowMap(KeyType type, std::size_t shards, const Configuration& configuration = {})
      : type_(type), configuration_(configuration), map_(shards, configuration) {}

  // Loads keys and their rows into an empty map; not at the same time as other calls. Throws
  // std::invalid_argument if the map has keys, or a key or a row appears twice. The map stays empty
  // if memory ends.
  void build(const KeyColumn& keys, const std::int64_t* rows, int threads) {
    check_keys(keys);
    if (size() > 0) throw std::invalid_argument("the map has keys already");
    const Codes codes(keys);
    std::vector<std::uint64_t> sorted(codes.data(), codes.data() + keys.count);
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      throw std::invalid_argument("keys have equal ones, needs each once, with its row");
    }
    RowNumbers numbers({rows, rows + keys.count});
    ShardedMap<std::int64_t> loaded(shards(), configuration_);
    loaded.build(codes.data(), rows, keys.count, threads);
    const std::lock_guard lock(*numbers_mutex_);
    map_ = std::move(loaded);
    numbers_ = std::move(numbers);
  }

  // Writes each key's row, or kNoRow. Returns how many keys have one.
  std::size_t find(const KeyColumn& keys, std::int64_t* rows) const {
    check_keys(keys);
    const Codes codes(keys);
    std::fill_n(rows, keys.count, kNoRow);
    const auto found = std::make_unique<bool[]>(keys.count);
    return map_.get(codes.data(), keys.count, rows, found.get());
  }

  // Writes each key's row, and whether the key is new: of equal ones the first is. Returns how many
  // are. New keys get rows in the order in which they first appear, the least free ones first.
  std::size_t find_or_insert(const KeyColumn& keys, std::int64_t* rows, bool* is_new) {
    check_keys(keys);
    const Codes codes(keys);
    RowSource source(*this);
    return index::find_or_insert(map_, codes.data(), keys.count, rows, is_new, source);
  }

  // Erases keys. Writes their rows, which are retired, or kNoRow. Returns how many keys had one.
  std::size_t erase(const KeyColumn& keys, std::int64_t* rows) {
    check_keys(keys);
    const Codes codes(keys);
    std::fill_n(rows, keys.count, kNoRow);
    std::size_t erased = 0;
    for (std::size_t i = 0; i < keys.count; ++i) {
      if (!map_.extract(codes.data()[i], rows[i])) continue;
      ++erased;
      const std::lock_guard lock(*numbers_mutex_);
      numbers_.retire(rows[i]);
    }
    return erased;
  }

  // Lets new keys have retired rows, when no thread reads these any more. Throws
  // std::invalid_argument.
  void release(const std::int64_t* rows, std::size_t count) {
    const std::lock_guard lock(*numbers_mutex_);
    numbers_.release(rows, count);
  }

  // Writes up to `most` keys in ascending order from the code `from` on, as codes, and their rows.
  // Returns how many.
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   std::int64_t* rows) const {
    return map_.scan(from, most, codes, rows);
  }

  KeyType key_type() const { return type_; }
  std::size_t size() const { return map_.size(); }
  std::size_t shards() const { return map_.shards(); }
  std::size_t bytes() const { return map_.bytes(); }
  // Rows that the table needs: one more than the largest that is in use or retired.
  std::int64_t rows() const {
    const std::lock_guard lock(*numbers_mutex_);
    return numbers_.end();
  }
  std::size_t free_rows() const {
    const std::lock_guard lock(*numbers_mutex_);
    return numbers_.free();
  }
  std::size_t retired_rows() const {
    const std::lock_guard lock(*numbers_mutex_);
    return numbers_.retired();
  }

  // Throws std::logic_error naming what is broken; not at the same time as changes.
  void verify() const {
    map_.verify();
    const std::lock_guard lock(*numbers_mutex_);
    const auto in_use =
        static_cast<std::size_t>(numbers_.end()) - numbers_.free() - numbers_.retired();
    // a child has not what other threads of its parent had reserved or were about to retire
    if (in_use < map_.size() || (in_use > map_.size() && !mark_.forked())) {
      throw std::logic_error("index: " + std::to_string(in_use) + " rows are in use for " +
                             std::to_string(map_.size()) + " keys");
    }
  }

 private:
  // Rows for new keys, taken before a shard is locked: a thread has one lock at a time. Those that
  // remain, as of equal keys, are given back.
  class RowSource {
   public:
    explicit RowSource(RowMap& map) : map_(map) {}
    RowSource(const RowSource&) = delete;
    RowSource& operator=(const RowSource&) = delete;
    ~RowSource() {
      if (used_ == rows_.size()) return;
      const std::lock_guard lock(*map_.numbers_mutex_);
      try {
        map_.numbers_.give_back(rows_.data() + used_, rows_.size() - used_);
      } catch (const std::bad_alloc&) {  // NOLINT: these rows stay unused
      }
    }

    void reserve(const std::uint64_t*, const bool*, std::size_t, std::size_t absent) {
      const std::lock_guard lock(*map_.numbers_mutex_);
      rows_ = map_.numbers_.take(absent);
    }
    const std::int64_t& next() const { return rows_[used_]; }
    void consume() { ++used_; }

   private:
    RowMap& map_;
    std::vector<std::int64_t> rows_;
    std::size_t used_ = 0;
  };

  KeyType type_;
  Configuration configuration_;
  ShardedMap<std::int64_t> map_;
  ForkMark mark_;
  // Not on a thread's stack, as the map may be: it is a fork listener.
  const std::unique_ptr<ForkSafeLock<>> numbers_mutex_ = std::make_unique<ForkSafeLock<>>();
  RowNumbers numbers_;
};

}  // namespace headrace::index
