// Rows of a server: against a std::map, from several threads, with wrong ids, without memory.
#include "embedding/row_store.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

using Row = std::vector<float>;

RowStoreOptions options(std::size_t shard = 0, std::size_t shards = 1) {
  return {.tables = {{"dense", 3, 20000, Distribution::uniform, 0.5},
                     {"hashed", 5, 0, Distribution::normal, 2.0},
                     {"huge", 6, std::uint64_t{1} << 60, Distribution::constant, 3.0}},
          .dim = 5,
          .state = 2,
          .state_initial = 0.25,
          .seed = 11,
          .shard = shard,
          .shards = shards};
}

struct Call {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> ends;

  RowIds rows() const { return {ids, ends}; }
};

std::span<std::byte> bytes(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

// Ids of a shard, some of them equal; few enough that most come again.
Call random_call(Random& random, const RowStoreOptions& of, int most) {
  const ShardRule rule(of.shards);
  Call call;
  for (const auto& table : of.tables) {
    for (int i = random.below(most); i > 0; --i) {
      auto place = static_cast<std::uint64_t>(random.below(5000));
      if (table.rows != 20000) place = mix(place) >> 5;  // below 2^59, and spread
      auto id = rule.id(of.shard, of.shards == 1 ? place : place / of.shards);
      if (table.rows != 0) id %= table.rows;
      if (rule.shard(id) == of.shard) call.ids.push_back(static_cast<std::int64_t>(id));
    }
    call.ends.push_back(static_cast<std::int64_t>(call.ids.size()));
  }
  return call;
}

std::vector<std::pair<std::size_t, std::int64_t>> names(const Call& call) {
  std::vector<std::pair<std::size_t, std::int64_t>> all;
  std::size_t i = 0;
  for (std::size_t t = 0; t < call.ends.size(); ++t) {
    for (; i < static_cast<std::size_t>(call.ends[t]); ++i) all.emplace_back(t, call.ids[i]);
  }
  return all;
}

Row initial(const RowStoreOptions& of, std::size_t table, std::int64_t id) {
  const auto& shape = of.tables[table];
  Row row(of.dim + of.state, static_cast<float>(of.state_initial));
  InitialValues(of.seed, shape.number, shape.distribution, shape.scale)
      .write<float>(static_cast<std::uint64_t>(id), reinterpret_cast<std::byte*>(row.data()),
                    of.dim);
  return row;
}

void check_list(const RowStore& store, const std::map<std::int64_t, Row>& expected,
                std::size_t table, std::size_t limit) {
  const auto width = store.row_bytes() / sizeof(float);
  auto next = expected.begin();
  std::int64_t after = -1;
  for (;;) {
    std::vector<std::int64_t> ids(limit);
    std::vector<float> values(limit * width);
    const auto count = store.scan(table, after, ids, bytes(values));
    for (std::size_t i = 0; i < count; ++i, ++next) {
      CHECK(next != expected.end());
      CHECK(next->first == ids[i]);
      CHECK(std::equal(next->second.begin(), next->second.end(), &values[i * width]));
    }
    if (count < limit) break;
    after = ids.back();
  }
  CHECK(next == expected.end());
}

void test_like_a_map(std::size_t shard, std::size_t shards) {
  const auto of = options(shard, shards);
  RowStore store(of);
  const auto width = of.dim + of.state;
  std::vector<std::map<std::int64_t, Row>> expected(of.tables.size());
  Random random(7, shard + 10 * shards);
  for (int round = 0; round < 200; ++round) {
    const auto call = random_call(random, of, round % 10 == 0 ? 2000 : 150);
    std::vector<float> values(call.ids.size() * width);
    const auto kind = random.below(3);
    if (kind == 0) {
      for (auto& value : values) value = random.unit();
      store.write(call.rows(), bytes(values));
    } else if (kind == 1) {
      store.fetch(call.rows(), bytes(values));
    } else {
      store.read(call.rows(), bytes(values));
    }
    std::size_t i = 0;
    for (const auto& [table, id] : names(call)) {
      auto& rows = expected[table];
      if (kind == 0) {
        rows[id] = Row(&values[i * width], &values[i * width] + width);
      } else {
        const auto row = rows.count(id) > 0 ? rows[id] : initial(of, table, id);
        CHECK(std::equal(row.begin(), row.end(), &values[i * width]));
        if (kind == 1) rows[id] = row;
      }
      ++i;
    }
  }
  std::size_t all_bytes = 0;
  for (std::size_t t = 0; t < of.tables.size(); ++t) {
    CHECK(store.rows(t) == expected[t].size());
    for (const std::size_t limit : {std::size_t{64}, std::size_t{1000}, expected[t].size()}) {
      check_list(store, expected[t], t, limit);
    }
    CHECK(store.bytes(t) > store.rows(t) * store.row_bytes());
    all_bytes += store.bytes(t);
  }
  CHECK(all_bytes <= of.memory->used() + (std::size_t{1} << 16));
}

// A listing that begins anew for a table that has grown meanwhile.
void test_list_of_a_growing_table() {
  const auto of = options();
  RowStore store(of);
  std::map<std::int64_t, Row> expected;
  std::vector<float> values(of.dim + of.state);
  const auto create = [&](std::int64_t id) {
    const std::vector<std::int64_t> ids{id};
    const std::vector<std::int64_t> ends{0, 1, 1};
    store.fetch({ids, ends}, bytes(values));
    expected[id] = initial(of, 1, id);
  };
  for (const std::int64_t id : {50, 10, 30}) create(id);
  std::vector<std::int64_t> ids(2);
  std::vector<float> rows(2 * values.size());
  CHECK(store.scan(1, -1, ids, bytes(rows)) == 2);
  CHECK(ids == (std::vector<std::int64_t>{10, 30}));
  create(40);
  CHECK(store.scan(1, 30, ids, bytes(rows)) == 2);
  CHECK(ids == (std::vector<std::int64_t>{40, 50}));
  CHECK(store.scan(1, 50, ids, bytes(rows)) == 0);
  check_list(store, expected, 1, 3);
}

void test_wrong_calls() {
  const auto of = options(0, 3);
  RowStore store(of);
  const ShardRule rule(3);
  const auto message = [&](std::size_t table, std::int64_t id) {
    Call call;
    // a row of this server before the wrong one: it must not be created
    for (std::size_t t = 0; t < of.tables.size(); ++t) {
      call.ids.push_back(static_cast<std::int64_t>(rule.id(0, 2)));
      if (t == table) call.ids.push_back(id);
      call.ends.push_back(static_cast<std::int64_t>(call.ids.size()));
    }
    std::vector<float> values(call.ids.size() * (of.dim + of.state));
    const auto action = [&] { store.write(call.rows(), bytes(values)); };
    return thrown<std::invalid_argument>(action);
  };
  CHECK(message(0, 20000) == "table dense: id is 20000, needs 0 to 19999");
  CHECK(message(1, -1) == "table hashed: id is -1, needs 0 to 9223372036854775807");
  CHECK(message(2, std::int64_t{1} << 60) ==
        "table huge: id is 1152921504606846976, needs 0 to 1152921504606846975");
  const auto other = static_cast<std::int64_t>(rule.id(2, 7));
  CHECK(message(1, other) ==
        "table hashed: id " + std::to_string(other) + " is of server 2, this is server 0 of 3");
  std::vector<std::int64_t> ids{0};
  std::vector<float> values(7);
  for (const std::vector<std::int64_t>& ends :
       std::vector<std::vector<std::int64_t>>{{0, 1}, {0, 1, 2}, {1, 0, 1}, {-1, 0, 1}}) {
    CHECK(thrown<std::invalid_argument>([&] { store.fetch({ids, ends}, bytes(values)); }) ==
          "ends need one number for each of 3 tables, rising to the 1 ids");
  }
  values.resize(6);
  const std::vector<std::int64_t> ends{0, 1, 1};
  CHECK(thrown<std::invalid_argument>([&] { store.fetch({ids, ends}, bytes(values)); }) ==
        "values have 24 bytes, need 28 for each of 1 ids");
  for (std::size_t t = 0; t < 3; ++t) CHECK(store.rows(t) == 0);
  CHECK(thrown<std::invalid_argument>([&] { store.rows(3); }) ==
        "table is 3, needs less than the 3 of the group");
}

// With every limit on memory: what was written before remains, and nothing of what fails.
void test_without_memory() {
  auto of = options();
  int failures = 0;
  for (std::size_t most = 8000; most < (std::size_t{8} << 20); most += 299'991) {
    of.memory = std::make_shared<MemoryBudget>(most);
    std::unique_ptr<RowStore> store;
    try {
      store = std::make_unique<RowStore>(of);
    } catch (const MemoryExhausted&) {
      continue;
    }
    std::vector<std::map<std::int64_t, Row>> expected(of.tables.size());
    Random random(3, most);
    const auto width = of.dim + of.state;
    for (int round = 0; round < 60; ++round) {
      auto call = random_call(random, of, 4000);
      // most ids are new ones
      for (std::size_t i = static_cast<std::size_t>(call.ends[0]); i < call.ids.size(); ++i) {
        call.ids[i] = static_cast<std::int64_t>(random.next() >> 4);
      }
      std::vector<float> values(call.ids.size() * width);
      for (auto& value : values) value = random.unit();
      try {
        store->write(call.rows(), bytes(values));
      } catch (const MemoryExhausted& error) {
        CHECK(std::string(error.what()).find("bytes of memory, may have") != std::string::npos);
        ++failures;
        break;
      }
      std::size_t i = 0;
      for (const auto& [table, id] : names(call)) {
        expected[table][id] = Row(&values[width * i], &values[width * i] + width);
        ++i;
      }
    }
    CHECK(of.memory->used() <= most);
    for (std::size_t t = 0; t < of.tables.size(); ++t) {
      Call call;
      for (const auto& [id, row] : expected[t]) call.ids.push_back(id);
      call.ends.assign(t, 0);
      call.ends.resize(of.tables.size(), static_cast<std::int64_t>(call.ids.size()));
      std::vector<float> values(call.ids.size() * width);
      store->fetch(call.rows(), bytes(values));
      std::size_t i = 0;
      for (const auto& [id, row] : expected[t]) {
        CHECK(std::equal(row.begin(), row.end(), &values[width * i++]));
      }
      // rows that a failed call created have their initial values
      std::vector<std::int64_t> ids(1);
      values.resize(width);
      std::int64_t after = -1;
      for (; t == 0 && store->scan(t, after, ids, bytes(values)) > 0; after = ids[0]) {
        const auto row =
            expected[t].count(ids[0]) > 0 ? expected[t][ids[0]] : initial(of, t, ids[0]);
        CHECK(row == values);
      }
    }
  }
  CHECK(failures > 10);
}

// Threads write rows whose numbers are all equal, and read such ones, also those of other threads.
void test_threads() {
  const auto of = options();
  RowStore store(of);
  const auto width = of.dim + of.state;
  std::atomic<int> running = 3;
  const auto act = [&](std::uint64_t thread) {
    Random random(5, thread);
    for (int round = 0; round < 150; ++round) {
      const auto call = random_call(random, of, 300);
      std::vector<float> values(call.ids.size() * width);
      for (std::size_t i = 0; i < call.ids.size(); ++i) {
        std::fill_n(&values[i * width], width, static_cast<float>(call.ids[i] % 1000 + round));
      }
      store.write(call.rows(), bytes(values));
      store.fetch(call.rows(), bytes(values));
      for (std::size_t i = 0; i < call.ids.size(); ++i) {
        CHECK(std::all_of(&values[i * width], &values[i * width] + width,
                          [&](float value) { return value == values[i * width]; }));
      }
    }
    --running;
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 3; ++thread) threads.emplace_back(act, thread);
  std::vector<std::int64_t> ids(100);
  std::vector<float> values(100 * width);
  while (running > 0) {
    for (std::size_t t = 0; t < of.tables.size(); ++t) {
      const auto count = store.scan(t, 1000, ids, bytes(values));
      CHECK(std::is_sorted(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)));
    }
  }
  for (auto& thread : threads) thread.join();
}

// Both: each server has the ids that the rule gives it, one of every `shards` consecutive ones.
void test_shards() {
  for (const std::size_t shards : {1, 2, 3, 7, 16}) {
    const ShardRule rule(shards);
    std::vector<std::size_t> counts(shards);
    for (std::uint64_t place = 0; place < 2000; ++place) {
      std::set<std::uint64_t> ids;
      for (std::size_t shard = 0; shard < shards; ++shard) {
        const auto id = rule.id(shard, place);
        CHECK(rule.shard(id) == shard && rule.place(id) == place);
        ids.insert(id);
      }
      CHECK(*ids.begin() == place * shards && *ids.rbegin() == place * shards + shards - 1);
      ++counts[rule.shard(place * shards)];  // ids with a common factor are spread, too
    }
    for (const auto count : counts) {
      CHECK(shards == 1 ||
            std::abs(static_cast<double>(count) * static_cast<double>(shards) - 2000) < 0.5 * 2000);
    }
  }
  Random random(2, 2);
  const ShardRule rule(5);
  auto of = options();
  const auto call = random_call(random, of, 500);
  const auto split = split_rows(rule, call.ids, call.ends);
  std::vector<float> rows(call.ids.size() * 3);
  for (auto& number : rows) number = random.unit();
  std::vector<float> gathered(rows.size());
  std::vector<float> scattered(rows.size());
  gather_rows(split.places, bytes(rows), bytes(gathered));
  scatter_rows(split.places, bytes(gathered), bytes(scattered));
  CHECK(rows == scattered);
  std::set<std::uint32_t> places;
  for (std::size_t shard = 0; shard < 5; ++shard) {
    auto row = static_cast<std::size_t>(split.first[shard]);
    for (std::size_t t = 0; t < 3; ++t) {
      const auto end = static_cast<std::size_t>(split.first[shard] + split.ends[3 * shard + t]);
      for (auto before = std::int64_t{-1}; row < end; ++row) {
        const auto place = split.places[row];
        CHECK(call.ids[place] == split.ids[row]);
        CHECK(rule.shard(static_cast<std::uint64_t>(split.ids[row])) == shard);
        CHECK(place < call.ends[t] && (t == 0 || place >= call.ends[t - 1]));
        CHECK(place > before);
        before = place;
        places.insert(place);
      }
    }
  }
  CHECK(places.size() == call.ids.size());
  thrown<std::invalid_argument>(
      [&] { gather_rows(split.places, bytes(rows).first(24), bytes(gathered)); });
}

// The quantile's tables, and moments of the numbers.
void test_initial_values() {
  CHECK(normal_quantile(0.5) == 0);
  CHECK(std::abs(normal_quantile(0.975) / 1.959963984540054 - 1) < 1e-15);
  CHECK(std::abs(normal_quantile(0x1p-53) / -8.209536151601387 - 1) < 1e-15);
  CHECK(normal_quantile(0.25) == -normal_quantile(0.75));
  double sum = 0;
  double squares = 0;
  constexpr std::size_t kNumbers = 200'000;
  std::vector<double> numbers(kNumbers);
  const InitialValues normal(1, 2, Distribution::normal, 3.0);
  for (std::size_t row = 0; row < kNumbers / 10; ++row) {
    normal.write<double>(row, reinterpret_cast<std::byte*>(&numbers[10 * row]), 10);
  }
  for (const auto number : numbers) {
    sum += number;
    squares += number * number;
  }
  CHECK(std::abs(sum / kNumbers) < 0.05);
  CHECK(std::abs(squares / kNumbers - 9) < 0.2);
  CHECK(std::set<double>(numbers.begin(), numbers.end()).size() == kNumbers);
}

}  // namespace

int main() {
  test_initial_values();
  test_shards();
  test_like_a_map(0, 1);
  test_like_a_map(0, 3);
  test_like_a_map(2, 3);
  test_list_of_a_growing_table();
  test_wrong_calls();
  test_without_memory();
  test_threads();
}
