// A server's embedding rows of one group of tables, whose rows have one width. A row is created on
// its first use, with values that follow from the seed, the table and the id alone.
//
// Several threads may call at once. Every table has a readers-writer lock, taken for some rows at a
// time: each row is read and written as a unit, a call's rows together are not.
//
// Calls with wrong ids change nothing. When memory ends, rows that a call has created remain, with
// their initial values, and no other row has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "embedding/initial_values.hpp"
#include "embedding/row_memory.hpp"
#include "embedding/shards.hpp"
#include "embedding/table_rows.hpp"

namespace headrace::embedding {

struct RowTable {
  std::string name;
  std::uint64_t number = 0;  // among the job's tables
  std::uint64_t rows = 0;    // ids are below it; 0: they are hashes, of 63 bits
  Distribution distribution = Distribution::uniform;
  double scale = 0;
};

struct RowStoreOptions {
  std::vector<RowTable> tables;
  std::size_t dim = 0;
  std::size_t state = 0;  // numbers of an optimizer behind those of the row
  double state_initial = 0;
  bool float64 = false;
  std::uint64_t seed = 0;
  // The server's number, and how many there are: see ShardRule.
  std::size_t shard = 0;
  std::size_t shards = 1;
  // Of this store, and of others that have the same one.
  std::shared_ptr<MemoryBudget> memory = std::make_shared<MemoryBudget>(~std::size_t{0});
};

// Rows in calls: [ids] of all tables, one table's after the other's, and where those of each end.
struct RowIds {
  Ids ids;
  std::span<const std::int64_t> ends;
};

class RowStore {
 public:
  // Throws std::invalid_argument.
  explicit RowStore(RowStoreOptions options);

  // Values are [ids, dim + state] numbers. All throw std::invalid_argument for ids that are outside
  // of their table or of another server, and where the number of values is wrong; fetch and write
  // throw std::bad_alloc.

  // Creates rows that do not exist.
  void fetch(const RowIds& rows, std::span<std::byte> values);
  // Rows that do not exist are created. Of equal ids the last counts.
  void write(const RowIds& rows, std::span<const std::byte> values);
  // Creates none: values of rows that do not exist are the initial ones.
  void read(const RowIds& rows, std::span<std::byte> values) const;
  // Writes up to `ids.size()` ids above `after` of a table, rising, and their values; returns how
  // many. One caller at a time lists a table best: the order of hashed ids is kept from its first
  // call, with `after` below 0, to its last.
  std::size_t scan(std::size_t table, std::int64_t after, std::span<std::int64_t> ids,
                   std::span<std::byte> values) const;

  // Of a table: rows, and bytes with all that finds them. In all of the memory chunks count that
  // tables have not filled.
  std::size_t rows(std::size_t table) const;
  std::size_t bytes(std::size_t table) const;

  std::size_t row_bytes() const { return row_bytes_; }
  const RowStoreOptions& options() const { return options_; }

 private:
  struct Table {
    Table(InitialValues values, RowChunks& chunks, MemoryBudget& budget);
    Table(InitialValues values, RowChunks& chunks, MemoryBudget& budget, const ShardRule& rule,
          std::uint64_t places);

    InitialValues initial;
    std::variant<HashedRows, DenseRows> rows;
    mutable std::shared_mutex mutex;
    // The ids of a hashed table in order, while they are listed.
    mutable std::mutex sorted_mutex;
    mutable BudgetedVector<std::int64_t> sorted;
  };

  void check(const RowIds& rows, std::size_t value_bytes) const;
  void check_ids(const RowTable& table, Ids ids) const;
  const Table& table_at(std::size_t table) const;
  static void locate(const Table& table, Ids ids, RowsOfBlock& rows);
  static bool complete(const RowsOfBlock& rows, std::size_t count);
  void create(Table& table, Ids ids, RowsOfBlock& rows);
  void write_initial(const Table& table, std::int64_t id, std::byte* values) const;
  void copy_out(const RowsOfBlock& rows, std::size_t count, std::byte* values) const;
  std::size_t list_ids(const Table& table, std::int64_t after, std::span<std::int64_t> ids) const;
  std::size_t list_hashed(const Table& table, std::int64_t after,
                          std::span<std::int64_t> ids) const;
  template <class Action>
  void for_blocks(const RowIds& rows, const Action& action) const;

  RowStoreOptions options_;
  ShardRule rule_;
  std::size_t row_bytes_;
  RowChunks dense_chunks_;
  RowChunks hashed_chunks_;
  std::vector<std::unique_ptr<Table>> tables_;
};

}  // namespace headrace::embedding
