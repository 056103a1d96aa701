#include "embedding/dispatch.hpp"

#include <bit>
#include <cstddef>
#include <utility>

namespace headrace::embedding {

namespace {

template <class Visit>
void for_each(Users users, Visit visit) {
  for (; users != 0; users &= users - 1) visit(static_cast<std::size_t>(std::countr_zero(users)));
}

// Parts that are filled from one pass over the rows and ids of each table.
class Parts {
 public:
  explicit Parts(const Decision& decision)
      : decision_(decision), parts_(decision.trainers), cursors_(decision.trainers) {
    make_room();
    for (std::size_t t = 0; t + 1 < decision_.first.size(); ++t) {
      add_rows(t);
      add_ids(t);
    }
    add_written();
  }

  std::vector<DispatchedRows> take() { return std::move(parts_); }

 private:
  // Numbers of rows of one trainer's part that are filled.
  struct Cursor {
    std::size_t used = 0;
    std::size_t used_before = 0;  // of the tables before
    std::size_t received = 0;     // from the end of the used ones on
    std::size_t ids = 0;
  };

  // Trainers that are only next users.
  Users receivers(std::size_t row) const {
    return decision_.next_users[row] & ~decision_.users[row];
  }

  void make_room() {
    for (std::size_t row = 0; row < decision_.ids.size(); ++row) {
      for_each(decision_.users[row], [&](std::size_t trainer) { ++cursors_[trainer].used; });
      for_each(receivers(row), [&](std::size_t trainer) { ++cursors_[trainer].received; });
    }
    for (std::size_t trainer = 0; trainer < parts_.size(); ++trainer) {
      auto& part = parts_[trainer];
      const auto& counts = cursors_[trainer];
      const auto rows = counts.used + counts.received;
      part.slots.resize(rows);
      part.users.resize(rows);
      part.next_users.resize(rows);
      part.owners.resize(rows);
      part.critical.resize(rows);
      std::size_t ids = 0;
      for (std::size_t t = 0; t + 1 < decision_.first.size(); ++t) {
        ids += id_stop(t, trainer) - id_start(t, trainer);
      }
      part.rows_of_ids.resize(ids);
      cursors_[trainer] = {.received = counts.used};
    }
  }

  void add_row(DispatchedRows& part, std::size_t place, std::size_t row) const {
    part.slots[place] = decision_.slots[row];
    part.users[place] = decision_.users[row];
    part.next_users[place] = decision_.next_users[row];
    part.owners[place] = decision_.owner[row];
    part.critical[place] = decision_.critical[row];
  }

  void add_rows(std::size_t table) {
    const auto start = static_cast<std::size_t>(decision_.first[table]);
    const auto stop = static_cast<std::size_t>(decision_.first[table + 1]);
    numbers_.resize(parts_.size() * (stop - start));
    for (auto row = start; row < stop; ++row) {
      const bool fetched = decision_.fetched[row] != 0;
      for_each(decision_.users[row], [&](std::size_t trainer) {
        auto& part = parts_[trainer];
        auto& cursor = cursors_[trainer];
        numbers_[trainer * (stop - start) + row - start] =
            static_cast<std::uint32_t>(cursor.used - cursor.used_before);
        add_row(part, cursor.used++, row);
        if (!fetched) return;
        part.fetched_ids.push_back(decision_.ids[row]);
        part.fetched_slots.push_back(decision_.slots[row]);
      });
      for_each(receivers(row), [&](std::size_t trainer) {
        add_row(parts_[trainer], cursors_[trainer].received++, row);
      });
    }
    for (std::size_t trainer = 0; trainer < parts_.size(); ++trainer) {
      auto& part = parts_[trainer];
      cursors_[trainer].used_before = cursors_[trainer].used;
      part.used_ends.push_back(static_cast<std::int64_t>(cursors_[trainer].used));
      part.fetched_ends.push_back(static_cast<std::int64_t>(part.fetched_ids.size()));
    }
  }

  void add_ids(std::size_t table) {
    const auto first = static_cast<std::size_t>(decision_.first[table]);
    const auto rows = static_cast<std::size_t>(decision_.first[table + 1]) - first;
    for (std::size_t trainer = 0; trainer < parts_.size(); ++trainer) {
      auto& part = parts_[trainer];
      auto& filled = cursors_[trainer].ids;
      const auto* numbers = numbers_.data() + trainer * rows;
      const auto stop = id_stop(table, trainer);
      for (auto i = id_start(table, trainer); i < stop; ++i) {
        part.rows_of_ids[filled++] = numbers[decision_.id_rows[first_id_ + i] - first];
      }
      part.id_ends.push_back(static_cast<std::int64_t>(filled));
    }
    first_id_ += id_stop(table, parts_.size() - 1);
  }

  void add_written() {
    for (std::size_t t = 0; t + 1 < decision_.evicted_first.size(); ++t) {
      const auto [start, stop] = rows_of(decision_.evicted_first, t);
      for (auto row = start; row < stop; ++row) {
        auto& part = parts_[decision_.evicted_owner[row]];
        part.evicted_ids.push_back(decision_.evicted_ids[row]);
        part.evicted_slots.push_back(decision_.evicted_slots[row]);
      }
      const auto [dirty_start, dirty_stop] = rows_of(decision_.dirty_first, t);
      for (auto row = dirty_start; row < dirty_stop; ++row) {
        auto& part = parts_[decision_.dirty_owner[row]];
        part.dirty_ids.push_back(decision_.dirty_ids[row]);
        part.dirty_slots.push_back(decision_.dirty_slots[row]);
      }
      for (auto& part : parts_) {
        part.evicted_ends.push_back(static_cast<std::int64_t>(part.evicted_ids.size()));
        part.dirty_ends.push_back(static_cast<std::int64_t>(part.dirty_ids.size()));
      }
    }
  }

  static std::pair<std::size_t, std::size_t> rows_of(const std::vector<std::int64_t>& first,
                                                     std::size_t table) {
    return {static_cast<std::size_t>(first[table]), static_cast<std::size_t>(first[table + 1])};
  }

  // Of the table's ids in the batch.
  std::size_t id_stop(std::size_t table, std::size_t trainer) const {
    return static_cast<std::size_t>(decision_.id_ends[table * parts_.size() + trainer]);
  }
  std::size_t id_start(std::size_t table, std::size_t trainer) const {
    return trainer == 0 ? 0 : id_stop(table, trainer - 1);
  }

  const Decision& decision_;
  std::vector<DispatchedRows> parts_;
  std::vector<Cursor> cursors_;
  std::vector<std::uint32_t> numbers_;  // [trainers, rows of the table]: among the used ones
  std::size_t first_id_ = 0;            // of the table, in the batch
};

}  // namespace

std::vector<DispatchedRows> dispatch(const Decision& decision) { return Parts(decision).take(); }

}  // namespace headrace::embedding
