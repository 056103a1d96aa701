// Decision on the rows of one batch: fetches, trainers that use and update them, evictions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::embedding {

using Batch = std::int64_t;
// One bit for every trainer.
using Users = std::uint32_t;

inline constexpr std::size_t kMostTrainers = 32;
inline constexpr Batch kNoBatch = -1;

// Fetches, uses and evictions of the rows of one batch. Columns of rows have a table's rows
// together, in the order of their first use.
struct Decision {
  Batch batch = kNoBatch;
  // Fetches for this batch begin when the evictions after this one are written back; below 0: at
  // once.
  Batch after = kNoBatch;

  // [tables + 1]: the first row of every table, and the end.
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> slots;
  // Trainers that use the row in this batch, and that get it from its owner after it: those of the
  // next batch of the window that uses it (0: none does, or the row is evicted for want of room).
  std::vector<Users> users;
  std::vector<Users> next_users;
  // One of `users`, of the trainers of the next use too where there is one: it updates the row and
  // has its newest value.
  std::vector<std::uint8_t> owner;
  // The next batch of the window that uses the row, even where it is evicted for want of room;
  // kNoBatch: none does.
  std::vector<Batch> next;
  // The last batch of the window that uses the row: its time to live.
  std::vector<Batch> last;
  // 1: the row is not in the cache, and fetched.
  std::vector<std::uint8_t> fetched;
  // 1: another trainer than this batch's one uses the row in the window, or several do here.
  std::vector<std::uint8_t> shared;
  // 1: the row is exchanged before the next batch, else while that one computes.
  std::vector<std::uint8_t> critical;

  // [tables + 1], [evicted]: rows evicted after this batch, where they lie, and the trainer with
  // the newest value.
  std::vector<std::int64_t> evicted_first;
  std::vector<std::int64_t> evicted_ids;
  std::vector<std::uint32_t> evicted_slots;
  std::vector<std::uint8_t> evicted_owner;
  // Evicted only because the cache has no room.
  std::size_t evicted_for_room = 0;

  // The servers have the newest value of every row when evicted and dirty ones are written.
  bool commit = false;
  // [tables + 1], [dirty]: at a commit, rows that stay in the cache and were updated since the
  // commit before, where they lie, and the trainer with the newest value.
  std::vector<std::int64_t> dirty_first;
  std::vector<std::int64_t> dirty_ids;
  std::vector<std::uint32_t> dirty_slots;
  std::vector<std::uint8_t> dirty_owner;

  // [ids of the batch], in the order of the tables: the slot of each, and its place in the columns
  // of rows.
  std::vector<std::uint32_t> id_slots;
  std::vector<std::uint32_t> id_rows;
  // [tables * trainers]: where the ids of each trainer end, from the first of the table's on.
  std::vector<std::int64_t> id_ends;
  std::size_t trainers = 0;

  // The columns of rows.
  void resize(std::size_t rows);
};

}  // namespace headrace::embedding
