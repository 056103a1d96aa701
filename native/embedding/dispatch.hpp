// Trainers' parts of a decision: the rows that each of them uses, fetches, evicts and receives.
#pragma once

#include <cstdint>
#include <vector>

#include "embedding/decision.hpp"

namespace headrace::embedding {

// One trainer's rows, in the order of the decision, a table's together.
struct DispatchedRows {
  // [tables]: where each table's rows end, among the used ones.
  std::vector<std::int64_t> used_ends;
  // The rows that the trainer uses, then those of which it is only a next user.
  std::vector<std::uint32_t> slots;
  std::vector<Users> users;
  std::vector<Users> next_users;
  std::vector<std::uint8_t> owners;
  std::vector<std::uint8_t> critical;

  // Used rows that are not in the cache.
  std::vector<std::int64_t> fetched_ends;
  std::vector<std::int64_t> fetched_ids;
  std::vector<std::uint32_t> fetched_slots;

  // Rows that are evicted after the batch, whose newest value the trainer has.
  std::vector<std::int64_t> evicted_ends;
  std::vector<std::int64_t> evicted_ids;
  std::vector<std::uint32_t> evicted_slots;

  // At a commit: rows that stay, of which the trainer has a value that the servers have not.
  std::vector<std::int64_t> dirty_ends;
  std::vector<std::int64_t> dirty_ids;
  std::vector<std::uint32_t> dirty_slots;

  // Of each of the trainer's ids, the number of its row among the used ones of its table.
  std::vector<std::uint32_t> rows_of_ids;
  std::vector<std::int64_t> id_ends;
};

// [trainers]
std::vector<DispatchedRows> dispatch(const Decision& decision);

}  // namespace headrace::embedding
