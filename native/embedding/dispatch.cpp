#include "embedding/dispatch.hpp"

#include <stdexcept>
#include <string>

namespace headrace::embedding {

namespace {

// Slots whose rows are evicted after the batch.
class EvictedSlots {
 public:
  explicit EvictedSlots(const Decision& decision) {
    for (auto slot : decision.evicted_slots) {
      if (slot >= evicted_.size()) evicted_.resize(slot + std::size_t{1});
      evicted_[slot] = true;
    }
  }
  bool contains(std::uint32_t slot) const { return slot < evicted_.size() && evicted_[slot]; }

 private:
  std::vector<bool> evicted_;
};

// Trainers that get the row's newest value from its owner: none of a row that is evicted for want
// of room before the next batch that uses it.
Users next_users(const Decision& decision, const EvictedSlots& evicted, std::size_t row) {
  return evicted.contains(decision.slots[row]) ? Users{0} : decision.next_users[row];
}

void add_row(const Decision& decision, const EvictedSlots& evicted, std::size_t row,
             DispatchedRows& rows) {
  rows.slots.push_back(decision.slots[row]);
  rows.users.push_back(decision.users[row]);
  rows.next_users.push_back(next_users(decision, evicted, row));
  rows.owners.push_back(decision.owner[row]);
  rows.critical.push_back(decision.next[row] == decision.batch + 1 ? 1 : 0);
}

// Returns the number of each used row among those of its table.
std::vector<std::uint32_t> add_rows(const Decision& decision, std::size_t trainer,
                                    DispatchedRows& rows) {
  const auto bit = Users{1} << trainer;
  const EvictedSlots evicted(decision);
  std::vector<std::uint32_t> numbers(decision.ids.size());
  std::vector<std::size_t> received;
  for (std::size_t t = 0; t + 1 < decision.first.size(); ++t) {
    std::uint32_t number = 0;
    const auto stop = static_cast<std::size_t>(decision.first[t + 1]);
    for (auto row = static_cast<std::size_t>(decision.first[t]); row < stop; ++row) {
      if ((decision.users[row] & bit) == 0) {
        if ((next_users(decision, evicted, row) & bit) != 0) received.push_back(row);
        continue;
      }
      numbers[row] = number++;
      add_row(decision, evicted, row, rows);
      if (decision.fetched[row] == 0) continue;
      rows.fetched_ids.push_back(decision.ids[row]);
      rows.fetched_slots.push_back(decision.slots[row]);
    }
    rows.used_ends.push_back(static_cast<std::int64_t>(rows.slots.size()));
    rows.fetched_ends.push_back(static_cast<std::int64_t>(rows.fetched_ids.size()));
  }
  for (auto row : received) add_row(decision, evicted, row, rows);
  return numbers;
}

void add_evicted(const Decision& decision, std::size_t trainer, DispatchedRows& rows) {
  for (std::size_t t = 0; t + 1 < decision.evicted_first.size(); ++t) {
    const auto stop = static_cast<std::size_t>(decision.evicted_first[t + 1]);
    for (auto row = static_cast<std::size_t>(decision.evicted_first[t]); row < stop; ++row) {
      if (decision.evicted_owner[row] != trainer) continue;
      rows.evicted_ids.push_back(decision.evicted_ids[row]);
      rows.evicted_slots.push_back(decision.evicted_slots[row]);
    }
    rows.evicted_ends.push_back(static_cast<std::int64_t>(rows.evicted_ids.size()));
  }
}

void add_ids(const Decision& decision, std::size_t trainer,
             const std::vector<std::uint32_t>& numbers, DispatchedRows& rows) {
  std::size_t first = 0;  // of the table's ids, in the batch
  for (std::size_t t = 0; t + 1 < decision.first.size(); ++t) {
    const auto* ends = decision.id_ends.data() + t * decision.trainers;
    const auto start = trainer == 0 ? 0 : static_cast<std::size_t>(ends[trainer - 1]);
    const auto stop = static_cast<std::size_t>(ends[trainer]);
    for (auto i = first + start; i < first + stop; ++i) {
      rows.rows_of_ids.push_back(numbers[decision.id_rows[i]]);
    }
    rows.id_ends.push_back(static_cast<std::int64_t>(rows.rows_of_ids.size()));
    first += static_cast<std::size_t>(ends[decision.trainers - 1]);
  }
}

}  // namespace

DispatchedRows dispatch(const Decision& decision, std::size_t trainer) {
  if (trainer >= decision.trainers) {
    throw std::invalid_argument("trainer is " + std::to_string(trainer) + ", needs 0 to " +
                                std::to_string(static_cast<std::int64_t>(decision.trainers) - 1));
  }
  DispatchedRows rows;
  const auto numbers = add_rows(decision, trainer, rows);
  add_evicted(decision, trainer, rows);
  add_ids(decision, trainer, numbers, rows);
  return rows;
}

}  // namespace headrace::embedding
