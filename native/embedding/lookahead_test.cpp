// Decisions of the lookahead: BagPipe's example, caches and servers whose rows have versions, also
// where lookahead and prefetch change, the fewest fetches by exhaustive search, hashed ids, wrong
// ids.
#include "embedding/lookahead.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

using Ids = std::vector<std::int64_t>;
// Of one batch: [tables][trainers].
using BatchIds = std::vector<std::vector<Ids>>;

void push(Lookahead& lookahead, const BatchIds& batch) {
  std::vector<Ids> ids(batch.size());
  std::vector<Ids> ends(batch.size());
  std::vector<TableIds> tables;
  for (std::size_t t = 0; t < batch.size(); ++t) {
    for (const auto& of : batch[t]) {
      ids[t].insert(ids[t].end(), of.begin(), of.end());
      ends[t].push_back(static_cast<std::int64_t>(ids[t].size()));
    }
    tables.push_back({ids[t], ends[t]});
  }
  lookahead.push(tables);
}

std::vector<Decision> decisions(const LookaheadOptions& options,
                                const std::vector<BatchIds>& batches) {
  Lookahead lookahead(options);
  std::vector<Decision> all;
  auto decide = [&] {
    const auto& decision = all.emplace_back(lookahead.pop());
    const auto every = static_cast<Batch>(options.commit_every);
    CHECK(decision.commit == (every > 0 && (decision.batch + 1) % every == 0));
    if (!decision.commit) CHECK(decision.dirty_ids.empty());
  };
  for (const auto& batch : batches) {
    push(lookahead, batch);
    if (lookahead.ready()) decide();
  }
  lookahead.finish();
  while (lookahead.ready()) decide();
  CHECK(all.size() == batches.size());
  CHECK(lookahead.resident() == 0);
  return all;
}

Ids fetched(const Decision& decision) {
  Ids ids;
  for (std::size_t i = 0; i < decision.ids.size(); ++i) {
    if (decision.fetched[i] != 0) ids.push_back(decision.ids[i]);
  }
  return ids;
}

// Figure 5.5: two examples a batch, a lookahead of 2.
void test_figure() {
  auto all = decisions({.rows = {10}, .lookahead = 2, .prefetch = 2, .slots = 8},
                       {{{{3, 9}}}, {{{3, 4}}}, {{{6, 3}}}, {{{1, 6}}}});
  CHECK(fetched(all[0]) == (Ids{3, 9}));
  CHECK(fetched(all[1]) == (Ids{4}));
  CHECK(fetched(all[2]) == (Ids{6}));
  CHECK(fetched(all[3]) == (Ids{1}));
  // Batches are counted from 0 here, from 1 in the figure.
  CHECK(all[0].last == (std::vector<Batch>{1, 0}));
  CHECK(all[1].last == (std::vector<Batch>{2, 1}));
  CHECK(all[2].last == (std::vector<Batch>{3, 2}));
  CHECK(all[0].evicted_ids == (Ids{9}));
  CHECK(all[1].evicted_ids == (Ids{4}));
  CHECK(all[2].evicted_ids == (Ids{3}));
  CHECK(all[3].evicted_ids == (Ids{1, 6}));
}

struct Case {
  LookaheadOptions options;
  std::vector<BatchIds> batches;
};

// Small tables, so that rows come again; the first table is used most by all trainers.
Case random_case(Random& random) {
  Case result;
  auto& options = result.options;
  options.trainers = static_cast<std::size_t>(1 + random.below(4));
  options.lookahead = static_cast<std::size_t>(1 + random.below(6));
  options.prefetch =
      static_cast<std::size_t>(1 + random.below(static_cast<int>(options.lookahead)));
  const auto tables = 1 + random.below(3);
  for (int t = 0; t < tables; ++t) {
    options.rows.push_back(static_cast<std::uint64_t>(1 + random.below(t == 0 ? 4 : 30)));
  }
  std::size_t largest = 1;
  for (int b = random.below(30); b >= 0; --b) {
    BatchIds batch(options.rows.size(), std::vector<Ids>(options.trainers));
    std::set<std::pair<std::size_t, std::int64_t>> distinct;
    for (std::size_t t = 0; t < batch.size(); ++t) {
      for (auto& ids : batch[t]) {
        for (int i = random.below(6); i > 0; --i) {
          ids.push_back(random.below(static_cast<int>(options.rows[t])));
          distinct.insert({t, ids.back()});
        }
      }
    }
    largest = std::max(largest, distinct.size());
    result.batches.push_back(batch);
  }
  // From the least that works to more than all rows.
  options.slots = largest + static_cast<std::size_t>(random.below(40));
  return result;
}

// Whether the cache has room for all rows that there are.
bool has_room(const LookaheadOptions& options) {
  return options.slots >= std::accumulate(options.rows.begin(), options.rows.end(), std::size_t{0});
}

struct Row {
  std::size_t table;
  std::int64_t id;
  auto operator<=>(const Row&) const = default;
};

std::vector<Row> rows_of(const std::vector<std::int64_t>& first, const Ids& ids) {
  std::vector<Row> rows;
  for (std::size_t t = 0; t + 1 < first.size(); ++t) {
    for (auto i = first[t]; i < first[t + 1]; ++i) {
      rows.push_back({t, ids[static_cast<std::size_t>(i)]});
    }
  }
  return rows;
}

std::map<Row, Users> users_of(const BatchIds& batch) {
  std::map<Row, Users> users;
  for (std::size_t t = 0; t < batch.size(); ++t) {
    for (std::size_t trainer = 0; trainer < batch[t].size(); ++trainer) {
      for (auto id : batch[t][trainer]) users[{t, id}] |= Users{1} << trainer;
    }
  }
  return users;
}

// Decisions while lookahead and prefetch change, and the end of the window at each.
struct Changed {
  std::vector<Decision> all;
  std::vector<Batch> ends;
};

Changed changed(const LookaheadOptions& options, const std::vector<BatchIds>& batches,
                Random& random) {
  Lookahead lookahead(options);
  Changed result;
  Batch pushed = 0;
  auto change = [&] {
    const auto length = 1 + random.below(8);
    if (random.below(3) == 0) {
      lookahead.change(static_cast<std::size_t>(length),
                       static_cast<std::size_t>(1 + random.below(length)));
    }
  };
  auto decide = [&] {
    result.ends.push_back(pushed);
    result.all.push_back(lookahead.pop());
    change();
  };
  for (const auto& batch : batches) {
    change();
    while (lookahead.ready()) decide();
    push(lookahead, batch);
    ++pushed;
    std::map<Row, Users> rows;
    for (auto b = result.all.size(); b + 1 < static_cast<std::size_t>(pushed); ++b) {
      rows.merge(users_of(batches[b]));
    }
    const auto before = rows.size();
    rows.merge(users_of(batch));
    CHECK(lookahead.distinct() == rows.size());
    CHECK(lookahead.newest_fetched() == rows.size() - before);
  }
  lookahead.finish();
  while (lookahead.ready()) decide();
  CHECK(result.all.size() == batches.size() && lookahead.resident() == 0);
  return result;
}

// Trains with rows that are numbers of updates. A fetch happens as early as it may, an eviction's
// write-back as late as `after` lets it; each use must find the newest value in its slot. After a
// commit the servers have all newest values.
void check_versions(const LookaheadOptions& options, const std::vector<BatchIds>& batches,
                    const std::vector<Decision>& all) {
  std::map<Row, int> truth;
  std::map<Row, int> servers;
  std::map<Row, std::uint8_t> owners;
  struct Slot {
    Row row{0, -1};
    int version = -1;
    bool in_use = false;
  };
  std::vector<Slot> cache(options.slots);
  std::vector<bool> fetched_already(batches.size(), false);
  auto fetch_after = [&](Batch done) {
    for (std::size_t y = 0; y < all.size(); ++y) {
      if (fetched_already[y] || all[y].after > done) continue;
      fetched_already[y] = true;
      auto rows = rows_of(all[y].first, all[y].ids);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (all[y].fetched[i] == 0) continue;
        auto& slot = cache[all[y].slots[i]];
        CHECK(!slot.in_use);
        slot = {rows[i], servers[rows[i]], true};
      }
    }
  };
  fetch_after(kNoBatch);
  for (std::size_t x = 0; x < all.size(); ++x) {
    const auto& decision = all[x];
    CHECK(decision.batch == static_cast<Batch>(x));
    CHECK(decision.after < decision.batch);
    CHECK(fetched_already[x]);
    const auto rows = rows_of(decision.first, decision.ids);
    const auto users = users_of(batches[x]);
    CHECK(rows.size() == users.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(decision.users[i] == users.at(rows[i]));
      CHECK((decision.users[i] >> decision.owner[i] & 1) == 1);
      auto& slot = cache[decision.slots[i]];
      CHECK(slot.in_use && slot.row == rows[i] && slot.version == truth[rows[i]]);
      slot.version = ++truth[rows[i]];
      owners[rows[i]] = decision.owner[i];
    }
    std::size_t place = 0;
    for (std::size_t t = 0; t < batches[x].size(); ++t) {
      for (const auto& ids : batches[x][t]) {
        for (auto id : ids) CHECK(cache[decision.id_slots[place++]].row == (Row{t, id}));
      }
    }
    CHECK(place == decision.id_slots.size());
    const auto gone = rows_of(decision.evicted_first, decision.evicted_ids);
    for (std::size_t i = 0; i < gone.size(); ++i) {
      auto& slot = cache[decision.evicted_slots[i]];
      CHECK(slot.in_use && slot.row == gone[i]);
      servers[gone[i]] = slot.version;
      slot.in_use = false;
    }
    const auto dirty = rows_of(decision.dirty_first, decision.dirty_ids);
    for (std::size_t i = 0; i < dirty.size(); ++i) {
      auto& slot = cache[decision.dirty_slots[i]];
      CHECK(slot.in_use && slot.row == dirty[i]);
      CHECK(decision.dirty_owner[i] == owners[dirty[i]]);
      CHECK(servers[dirty[i]] != slot.version);  // no row is written twice
      servers[dirty[i]] = slot.version;
    }
    if (decision.commit) {
      for (const auto& [row, version] : truth) CHECK(servers[row] == version);
    }
    fetch_after(decision.batch);
  }
  CHECK(servers == truth);
}

// The columns that look ahead, against the batches themselves; `ends` are the windows'.
void check_window(const LookaheadOptions& options, const std::vector<BatchIds>& batches,
                  const std::vector<Decision>& all, const std::vector<Batch>& ends) {
  std::vector<std::map<Row, Users>> users;
  for (const auto& batch : batches) users.push_back(users_of(batch));
  for (std::size_t x = 0; x < all.size(); ++x) {
    const auto stop = static_cast<std::size_t>(ends[x]);
    const auto rows = rows_of(all[x].first, all[x].ids);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Batch next = kNoBatch;
      auto last = static_cast<Batch>(x);
      Users next_users = 0;
      Users window = 0;
      for (auto b = x; b < stop; ++b) {
        const auto use = users[b].find(rows[i]);
        if (use == users[b].end()) continue;
        window |= use->second;
        last = static_cast<Batch>(b);
        if (next == kNoBatch && b > x) {
          next = last;
          next_users = use->second;
        }
      }
      CHECK(all[x].next[i] == next);
      const auto& evicted = all[x].evicted_slots;
      const bool stays = std::ranges::find(evicted, all[x].slots[i]) == evicted.end();
      CHECK(all[x].next_users[i] == (stays ? next_users : Users{0}));
      CHECK((all[x].critical[i] == 1) == (next == static_cast<Batch>(x) + 1));
      CHECK(all[x].last[i] == last);
      CHECK(all[x].shared[i] == (std::popcount(window) > 1 ? 1 : 0));
      const auto both = all[x].users[i] & next_users;
      CHECK(both == 0 || (both >> all[x].owner[i] & 1) == 1);
      if (all[x].evicted_for_room == 0) CHECK(stays == (next != kNoBatch));
    }
    if (has_room(options)) CHECK(all[x].evicted_for_room == 0);
  }
}

void test_decisions(const Case& example) {
  auto [options, batches] = example;
  options.commit_every = 3;
  const auto all = decisions(options, batches);
  std::vector<Batch> ends;
  for (std::size_t x = 0; x < all.size(); ++x) {
    ends.push_back(static_cast<Batch>(std::min(batches.size(), x + options.lookahead)));
    const auto rule = static_cast<Batch>(x) - static_cast<Batch>(options.prefetch);
    CHECK(all[x].after == std::max(rule, kNoBatch) || !has_room(options));
  }
  check_versions(options, batches, all);
  check_window(options, batches, all, ends);
}

// The same where lookahead and prefetch change at any time.
void test_changed(const Case& example, Random& random) {
  auto [options, batches] = example;
  options.commit_every = 3;
  const auto [all, ends] = changed(options, batches, random);
  check_versions(options, batches, all);
  check_window(options, batches, all, ends);
}

// A later epoch's batches are numbered on, and fetched after all evictions of the epoch before.
void test_later_epoch(const Case& example) {
  auto options = example.options;
  const auto expected = decisions(options, example.batches);
  options.first_batch = 1000;
  const auto later = decisions(options, example.batches);
  for (std::size_t x = 0; x < later.size(); ++x) {
    CHECK(later[x].batch == expected[x].batch + options.first_batch);
    CHECK(later[x].after == options.first_batch + std::max(expected[x].after, kNoBatch));
    CHECK(later[x].slots == expected[x].slots && later[x].fetched == expected[x].fetched);
    CHECK(later[x].next_users == expected[x].next_users);
    CHECK(later[x].evicted_slots == expected[x].evicted_slots);
  }
}

// Hashed ids are decided as numbered ones.
void test_hashed(Case example) {
  const auto numbered = decisions(example.options, example.batches);
  auto hash = [](std::int64_t id) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(id + 1) * 0x5851f42d4c957f2dU >> 1);
  };
  for (auto& batch : example.batches) {
    for (auto& table : batch) {
      for (auto& ids : table) std::ranges::transform(ids, ids.begin(), hash);
    }
  }
  std::ranges::fill(example.options.rows, 0);
  const auto hashed = decisions(example.options, example.batches);
  for (std::size_t x = 0; x < hashed.size(); ++x) {
    auto ids = numbered[x].ids;
    std::ranges::transform(ids, ids.begin(), hash);
    CHECK(hashed[x].ids == ids);
    CHECK(hashed[x].slots == numbered[x].slots);
    CHECK(hashed[x].fetched == numbered[x].fetched);
    CHECK(hashed[x].last == numbered[x].last);
    CHECK(hashed[x].evicted_slots == numbered[x].evicted_slots);
  }
}

// The fewest fetches of any cache of so many rows that loads what each batch needs, by trying all
// sets to keep.
int fewest_fetches(const std::vector<std::set<int>>& batches, std::size_t slots) {
  std::map<std::set<int>, int> states{{{}, 0}};
  for (std::size_t x = 0; x < batches.size(); ++x) {
    std::map<std::set<int>, int> after;
    for (const auto& [cached, cost] : states) {
      auto all = cached;
      all.insert(batches[x].begin(), batches[x].end());
      const auto total = cost + static_cast<int>(all.size() - cached.size());
      const std::vector<int> rows(all.begin(), all.end());
      for (unsigned mask = 0; mask < 1U << rows.size(); ++mask) {
        std::set<int> kept;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          if ((mask >> i & 1U) != 0) kept.insert(rows[i]);
        }
        auto needed = kept;
        if (x + 1 < batches.size()) needed.insert(batches[x + 1].begin(), batches[x + 1].end());
        if (needed.size() > slots) continue;
        const auto [place, fresh] = after.try_emplace(kept, total);
        if (!fresh) place->second = std::min(place->second, total);
      }
    }
    states = std::move(after);
  }
  auto best = std::numeric_limits<int>::max();
  for (const auto& [cached, cost] : states) best = std::min(best, cost);
  return best;
}

void test_fewest_fetches(Random& random) {
  std::vector<std::set<int>> batches(static_cast<std::size_t>(2 + random.below(6)));
  std::vector<BatchIds> pushed;
  std::size_t largest = 1;
  for (auto& batch : batches) {
    for (int i = 1 + random.below(3); i > 0; --i) batch.insert(random.below(6));
    largest = std::max(largest, batch.size());
    pushed.push_back({{Ids(batch.begin(), batch.end())}});
  }
  const auto slots = largest + static_cast<std::size_t>(random.below(3));
  auto fetches = std::size_t{0};
  for (const auto& decision : decisions(
           {.rows = {6}, .lookahead = batches.size(), .prefetch = 1, .slots = slots}, pushed)) {
    fetches += fetched(decision).size();
  }
  CHECK(static_cast<int>(fetches) == fewest_fetches(batches, slots));
}

void test_refused() {
  using E = std::invalid_argument;
  auto made = [](LookaheadOptions options) {
    return thrown<E>([&] { Lookahead lookahead(std::move(options)); });
  };
  CHECK(made({.rows = {}, .slots = 1}) == "tables is 0, needs 1 to 1048576");
  CHECK(made({.rows = {5}, .trainers = 33, .slots = 1}) == "trainers is 33, needs 1 to 32");
  CHECK(made({.rows = {5}, .lookahead = 2, .prefetch = 3, .slots = 1}) ==
        "prefetch is 3, needs 1 to 2");
  Lookahead lookahead({.rows = {5, 0}, .lookahead = 2, .slots = 3});
  CHECK(thrown<E>([&] { lookahead.change(0, 1); }) == "lookahead is 0, needs 1 to 65535");
  CHECK(thrown<E>([&] { lookahead.change(2, 3); }) == "prefetch is 3, needs 1 to 2");
  push(lookahead, {{{4}}, {{7}}});
  CHECK(thrown<E>([&] { push(lookahead, {{{4, 5}}, {{}}}); }) ==
        "table 0: id 5 at place 1, needs 0 to 4");
  CHECK(thrown<E>([&] { push(lookahead, {{{}}, {{-1}}}); }) ==
        "table 1: id -1 at place 0, needs 0 to 9223372036854775807");
  // Of a large table only the rows that are used have numbers; it ends where it does all the same.
  const auto large = std::int64_t{1} << 33;
  Lookahead bounded({.rows = {static_cast<std::uint64_t>(large)}, .slots = 3});
  CHECK(thrown<E>([&] { push(bounded, {{{3, large}}}); }) ==
        "table 0: id 8589934592 at place 1, needs 0 to 8589934591");
  push(bounded, {{{large - 1}}});
  CHECK(fetched(bounded.pop()) == (Ids{large - 1}));
  CHECK(made({.rows = {(std::uint64_t{1} << 63) + 1}, .slots = 1}) ==
        "rows is 9223372036854775809, needs 0 to 9223372036854775808");
  CHECK(thrown<E>([&] { push(lookahead, {{{}}}); }) == "a batch has 1 tables, needs 2");
  push(lookahead, {{{4}}, {{8}}});
  CHECK(thrown<std::logic_error>([&] { push(lookahead, {{{}}, {{}}}); }) ==
        "a decision is due before the next batch");
  CHECK(fetched(lookahead.pop()) == (Ids{4, 7}));
  const auto full = "batch 2 has 4 distinct rows, more than the 3 that the cache has room for";
  CHECK(thrown<E>([&] { push(lookahead, {{{0, 1, 0}}, {{1, 2}}}); }) == full);
  CHECK(thrown<E>([&] { lookahead.pop(); }) == full);
  CHECK(thrown<E>([&] { push(lookahead, {{{}}, {{}}}); }) == full);
}

// Numbers of ids that come and go, against a map.
void test_id_numbers() {
  Random random(1, 2);
  IdNumbers numbers;
  std::map<std::uint64_t, std::uint32_t> expected;
  for (int i = 0; i < 200'000; ++i) {
    const auto id = static_cast<std::uint64_t>(random.below(5000)) << (random.below(2) * 40);
    const auto numbered = expected.find(id);
    if (numbered != expected.end() && random.below(2) == 0) {
      numbers.erase(numbered->second);
      expected.erase(numbered);
      continue;
    }
    const auto number = numbers.find_or_insert(id);
    CHECK(numbered == expected.end() || numbered->second == number);
    CHECK(numbers.id(number) == id);
    expected[id] = number;
  }
  CHECK(numbers.bound() <= 10'000);
}

}  // namespace

int main() {
  test_figure();
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed, 0);
    const auto example = random_case(random);
    test_decisions(example);
    test_later_epoch(example);
    test_changed(example, random);
    test_hashed(example);
    test_fewest_fetches(random);
  }
  test_refused();
  test_id_numbers();
}
