// Parts of trainers against the decision and the batch themselves, looked up row by row.
#include "embedding/dispatch.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "check.hpp"
#include "embedding/lookahead.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

using Ids = std::vector<std::int64_t>;

struct PushedBatch {
  std::vector<Ids> ids;   // [tables]
  std::vector<Ids> ends;  // [tables][trainers]
};

PushedBatch random_batch(Random& random, const LookaheadOptions& options) {
  PushedBatch batch;
  for (auto rows : options.rows) {
    Ids ids;
    Ids ends;
    for (std::size_t trainer = 0; trainer < options.trainers; ++trainer) {
      for (int i = random.below(6); i > 0; --i) {
        ids.push_back(random.below(rows == 0 ? 20 : static_cast<int>(rows)));
        if (rows == 0) ids.back() = ids.back() << 40 | 7;
      }
      ends.push_back(static_cast<std::int64_t>(ids.size()));
    }
    batch.ids.push_back(ids);
    batch.ends.push_back(ends);
  }
  return batch;
}

// Rows of a table that fulfil a condition, in the order of the decision.
template <class Condition>
std::vector<std::size_t> rows_where(const Decision& decision, std::size_t table,
                                    Condition condition) {
  std::vector<std::size_t> rows;
  for (auto i = decision.first[table]; i < decision.first[table + 1]; ++i) {
    if (condition(static_cast<std::size_t>(i))) rows.push_back(static_cast<std::size_t>(i));
  }
  return rows;
}

template <class T>
std::vector<T> part(const std::vector<T>& column, std::size_t start, std::int64_t stop) {
  return {column.begin() + static_cast<std::ptrdiff_t>(start),
          column.begin() + static_cast<std::ptrdiff_t>(stop)};
}

// Checks the rows of a table that a trainer writes, from place `start` of its part on; returns
// their end.
std::size_t check_written(const Decision& decision, std::vector<std::int64_t> Decision::* first,
                          const Ids& ids, const std::vector<std::uint32_t>& slots,
                          const std::vector<std::uint8_t>& owners, std::size_t table,
                          std::size_t trainer, std::size_t start, const Ids& part_ids,
                          const std::vector<std::uint32_t>& part_slots) {
  for (auto i = (decision.*first)[table]; i < (decision.*first)[table + 1]; ++i) {
    const auto row = static_cast<std::size_t>(i);
    if (owners[row] != trainer) continue;
    CHECK(part_ids[start] == ids[row]);
    CHECK(part_slots[start++] == slots[row]);
  }
  return start;
}

void check_trainer(const Decision& decision, const DispatchedRows& parts, const PushedBatch& batch,
                   std::size_t trainer) {
  auto uses = [&](std::size_t row) { return (decision.users[row] >> trainer & 1) == 1; };
  std::vector<std::size_t> expected;
  std::vector<std::size_t> received;
  std::size_t fetched = 0;
  std::size_t evicted = 0;
  std::size_t dirty = 0;
  std::size_t ids = 0;
  for (std::size_t t = 0; t < batch.ids.size(); ++t) {
    const auto used = rows_where(decision, t, uses);
    const auto only_next = rows_where(decision, t, [&](std::size_t row) {
      return !uses(row) && (decision.next_users[row] >> trainer & 1) == 1;
    });
    expected.insert(expected.end(), used.begin(), used.end());
    received.insert(received.end(), only_next.begin(), only_next.end());
    CHECK(parts.used_ends[t] == static_cast<std::int64_t>(expected.size()));

    Ids fetched_ids;
    for (auto row : used) {
      if (decision.fetched[row] == 0) continue;
      fetched_ids.push_back(decision.ids[row]);
      CHECK(parts.fetched_slots[fetched + fetched_ids.size() - 1] == decision.slots[row]);
    }
    CHECK(part(parts.fetched_ids, fetched, parts.fetched_ends[t]) == fetched_ids);
    fetched += fetched_ids.size();

    evicted = check_written(decision, &Decision::evicted_first, decision.evicted_ids,
                            decision.evicted_slots, decision.evicted_owner, t, trainer, evicted,
                            parts.evicted_ids, parts.evicted_slots);
    CHECK(parts.evicted_ends[t] == static_cast<std::int64_t>(evicted));
    dirty =
        check_written(decision, &Decision::dirty_first, decision.dirty_ids, decision.dirty_slots,
                      decision.dirty_owner, t, trainer, dirty, parts.dirty_ids, parts.dirty_slots);
    CHECK(parts.dirty_ends[t] == static_cast<std::int64_t>(dirty));

    const auto start = trainer == 0 ? 0 : batch.ends[t][trainer - 1];
    for (auto i = start; i < batch.ends[t][trainer]; ++i) {
      const auto row = used.at(parts.rows_of_ids.at(ids++));
      CHECK(decision.ids[row] == batch.ids[t][static_cast<std::size_t>(i)]);
    }
    CHECK(parts.id_ends[t] == static_cast<std::int64_t>(ids));
  }
  CHECK(ids == parts.rows_of_ids.size());
  CHECK(evicted == parts.evicted_ids.size() && dirty == parts.dirty_ids.size());
  expected.insert(expected.end(), received.begin(), received.end());
  CHECK(parts.slots.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto row = expected[i];
    CHECK(parts.slots[i] == decision.slots[row]);
    CHECK(parts.users[i] == decision.users[row]);
    CHECK(parts.next_users[i] == decision.next_users[row]);
    CHECK(parts.owners[i] == decision.owner[row]);
    CHECK(parts.critical[i] == decision.critical[row]);
  }
}

// Returns the rows that were evicted for want of room.
std::size_t test_parts(Random& random) {
  LookaheadOptions options;
  options.trainers = static_cast<std::size_t>(1 + random.below(8));
  options.lookahead = static_cast<std::size_t>(1 + random.below(5));
  options.synchronisation = static_cast<Synchronisation>(random.below(4));
  for (int t = 1 + random.below(4); t > 0; --t) {
    options.rows.push_back(random.below(3) == 0 ? 0
                                                : static_cast<std::uint64_t>(1 + random.below(20)));
  }
  options.commit_every = static_cast<std::size_t>(random.below(4));
  std::vector<PushedBatch> batches;
  options.slots = 1;
  for (int b = 0; b < 12; ++b) {
    const auto& batch = batches.emplace_back(random_batch(random, options));
    std::size_t distinct = 0;
    for (const auto& ids : batch.ids) distinct += std::set(ids.begin(), ids.end()).size();
    options.slots = std::max(options.slots, distinct);
  }
  options.slots += static_cast<std::size_t>(random.below(20));
  Lookahead lookahead(options);
  std::size_t decided = 0;
  std::size_t for_room = 0;
  auto check = [&] {
    const auto decision = lookahead.pop();
    const auto parts = dispatch(decision);
    CHECK(parts.size() == options.trainers);
    for (std::size_t trainer = 0; trainer < options.trainers; ++trainer) {
      check_trainer(decision, parts[trainer], batches[decided], trainer);
    }
    for_room += decision.evicted_for_room;
    ++decided;
  };
  for (const auto& batch : batches) {
    std::vector<TableIds> tables;
    for (std::size_t t = 0; t < batch.ids.size(); ++t) {
      tables.push_back({batch.ids[t], batch.ends[t]});
    }
    lookahead.push(tables);
    if (lookahead.ready()) check();
  }
  lookahead.finish();
  while (lookahead.ready()) check();
  CHECK(decided == batches.size());
  return for_room;
}

}  // namespace

int main() {
  std::size_t for_room = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed, 3);
    for_room += test_parts(random);
  }
  CHECK(for_room > 100);
}
