// Decisions on caches of embedding rows, what to fetch, keep and evict, from the batches to come
// (the lookahead algorithm of BagPipe, 5.2.2, for several trainers: 5.2.3).
//
// Batches arrive in order. When those from x to x + lookahead - 1 have arrived, x is decided: which
// rows are fetched for it from the servers, which trainers use and which one updates each, in which
// slot of the caches it lies, when it is used next, and which rows are evicted after it. A row
// stays from its fetch to the last of its uses that are less than `lookahead` batches apart.
//
// No row is read while an update of it is not written back: what is fetched for batch y may be
// fetched as soon as the evictions after batch `after` are written back, and no earlier. `after` is
// y - prefetch, or later where slots or rows come free later. Slots are used again under the same
// rule, so a trainer that computes and a thread that fetches never have a slot in common.
//
// Lookahead and prefetch may change between any two batches. A batch is fetched no earlier than
// behind the decision before its arrival: rows that were evicted later were known to be used in it.
//
// Where the cache has not room for all rows that would stay, those go whose next use is farthest
// (Belady), from the far end of the window on: the lookahead shrinks as far as it must.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "embedding/cache_design.hpp"
#include "embedding/decision.hpp"
#include "embedding/row_numbers.hpp"
#include "huge_pages.hpp"

namespace headrace::embedding {

inline constexpr std::size_t kMostLookahead = 65535;

struct LookaheadOptions {
  // Of every table: its ids are below; 0: ids are hashes, of 63 bits.
  std::vector<std::uint64_t> rows;
  std::size_t trainers = 1;
  // Batches that a decision looks at, that batch included.
  std::size_t lookahead = 1;
  // Batches between a fetch and its use, at most `lookahead`.
  std::size_t prefetch = 1;
  // Rows that the cache of a trainer has room for.
  std::size_t slots = 0;
  Synchronisation synchronisation = Synchronisation::kTargeted;
  // Number of the first batch: all evictions after the one before it are to be written back before
  // a fetch.
  Batch first_batch = 0;
  // Batches from one commit to the next, by their numbers; 0: there is none.
  std::size_t commit_every = 0;
};

// A table's ids in a batch, one trainer's after the other's.
struct TableIds {
  std::span<const std::int64_t> ids;
  // [trainers]: end of every trainer's ids; the last is the number of ids.
  std::span<const std::int64_t> ends;
};

class Lookahead {
 public:
  // Throws std::invalid_argument.
  explicit Lookahead(LookaheadOptions options);

  // Takes the next batch: `tables` has one element for every table. Work is constant per id,
  // whatever the lookahead. Throws std::invalid_argument for ids outside of their table, which
  // leaves everything as it was, and for a batch with more rows than slots, after which only the
  // same error is given; std::logic_error while a decision is due.
  void push(std::span<const TableIds> tables);
  // No batch follows.
  void finish() { finished_ = true; }
  // Changes both for batches that are decided from now on. Batches that have arrived beyond a
  // shorter lookahead are in the window of those that are decided first. Throws
  // std::invalid_argument for what the constructor refuses.
  void change(std::size_t lookahead, std::size_t prefetch);
  // Whether the next batch can be decided.
  bool ready() const {
    return !window_.empty() && (finished_ || window_.size() >= options_.lookahead);
  }
  // Decides the next batch. Throws std::logic_error unless `ready`.
  Decision pop();

  // Rows in the cache, and those that the batches in the window fetch.
  std::size_t distinct() const;
  // Rows in the cache after the batch that was decided last.
  std::size_t resident() const { return resident_; }
  // Rows of the batch that arrived last that no other batch of the window has.
  std::size_t newest_fetched() const { return window_.empty() ? 0 : window_.back().fetched; }
  // Batches that have arrived and are not decided.
  std::size_t arrived() const { return window_.size(); }
  const LookaheadOptions& options() const { return options_; }

 private:
  // A row in a batch.
  struct Use {
    std::uint32_t row;  // its number in the table
    Users users = 0;
    std::uint32_t slot = 0;            // if resident
    std::uint32_t next_place = 0;      // in the batch of the next use
    std::uint16_t next = 0;            // batches to the next use; 0: none has arrived
    std::uint16_t alone = 0;           // batches back to where the uses by `before` alone began
    std::uint8_t before = kNoTrainer;  // the only trainer of the use before this one
    std::uint8_t owner = 0;            // of the use before, if resident
    bool resident = false;             // in the cache when the batch begins
    bool dirty = false;                // and updated since the last commit
  };
  // Of the newest batch that uses a row.
  struct Newest {
    Batch batch() const { return static_cast<Batch>(batch_plus_1) - 1; }
    std::uint32_t batch_plus_1 = 0;  // 0: none
    std::uint32_t place = 0;         // in its `uses`
  };
  struct Table {
    bool hashed = false;
    std::uint64_t rows = 0;
    std::vector<Newest, HugePages<Newest>> newest;  // by number
    IdNumbers numbers;                              // of a hashed table
  };
  struct Arrived {
    std::vector<Use, HugePages<Use>> uses = {};  // one table's after the other's
    std::vector<std::size_t> first = {};         // [tables + 1], in `uses`
    std::vector<std::uint32_t> places = {};      // of every id in `uses`
    std::vector<std::int64_t> ends = {};         // [tables * trainers], of ids
    std::size_t fetched = 0;                     // rows that are fetched for it, as decided so far
    std::size_t resident = 0;                    // rows in the cache that are used next here
    Batch after = kNoBatch;                      // what it fetches waits for, see `Decision`
  };
  struct FreeSlot {
    std::uint32_t slot;
    Batch since;  // the batch after which it is free
  };
  // A row that is written back.
  struct Written {
    std::size_t table;
    std::int64_t id;
    std::uint32_t slot;
    std::uint8_t owner;
  };
  static constexpr std::uint8_t kNoTrainer = 255;

  void check(std::span<const TableIds> tables) const;
  template <bool kHashed>
  void arrive(Table& table, const TableIds& ids, Arrived& arrived, std::uint32_t* places);
  void link(Use& use, const Newest& newest, std::uint32_t place);
  void decide(std::size_t table, Decision& decision, std::vector<Written>& evicted);
  void prefetch(const Table& table, const Use& use) const;
  void prefetch_newest(const Table& table, const Use& use) const;
  bool shared(const Table& table, const Use& use) const;
  void evict_for_room(Decision& decision, std::vector<Written>& evicted);
  void evict_from(Batch batch, std::size_t most, std::vector<Written>& evicted);
  void leave_out_next_users(const std::vector<Written>& evicted, Decision& decision) const;
  std::vector<Written> take_dirty();
  void by_table(const std::vector<Written>& rows, std::vector<std::int64_t>& first,
                std::vector<std::int64_t>& ids, std::vector<std::uint32_t>& slots,
                std::vector<std::uint8_t>& owners) const;
  std::uint32_t take_slot(Batch& after);

  static std::int64_t id(const Table& table, const Use& use) {
    return table.hashed ? static_cast<std::int64_t>(table.numbers.id(use.row))
                        : std::int64_t{use.row};
  }
  Arrived& at(Batch batch) { return window_[static_cast<std::size_t>(batch - first_)]; }
  const Arrived& at(Batch batch) const { return window_[static_cast<std::size_t>(batch - first_)]; }
  Use& next_use(const Use& use) { return at(first_ + use.next).uses[use.next_place]; }
  const Use& newest_use(const Newest& newest) const {
    return at(newest.batch()).uses[newest.place];
  }
  Batch end() const { return first_ + static_cast<Batch>(window_.size()); }

  LookaheadOptions options_;
  CacheDesign design_;
  std::vector<Table> tables_;
  std::deque<Arrived> window_;  // from batch first_ on
  Arrived spare_;               // of the batch decided last, for its memory
  Batch first_;
  std::size_t resident_ = 0;
  std::deque<FreeSlot> free_;  // by `since`
  std::uint32_t unused_ = 0;   // the first slot that was never used
  bool finished_ = false;
  std::string failure_;
};

}  // namespace headrace::embedding
