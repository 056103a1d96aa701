// Logs of a store's tables on a simulated disk: openings after commits, after one that only some
// servers made, and by other numbers of servers.
#include "embedding/store_log.hpp"

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/durable/files_faulty.hpp"
#include "index/durable/files_simulated.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

constexpr std::size_t kTables = 2;
constexpr std::size_t kWidth = 3;
constexpr std::int64_t kRows = 500;

using Row = std::array<float, kWidth>;
using Model = std::map<std::pair<std::size_t, std::int64_t>, Row>;  // by table and id

std::mt19937_64 engine(11);  // NOLINT: the same sequence in every run

RowStore store_of(std::size_t shard, std::size_t shards) {
  RowStoreOptions options;
  options.tables = {{"numbered", 0, kRows, Distribution::constant, 0.5},
                    {"hashed", 1, 0, Distribution::constant, 0.5}};
  options.dim = kWidth;
  options.shard = shard;
  options.shards = shards;
  return RowStore(options);
}

std::vector<LoggedTable> folders(const std::string& server,
                                 const std::vector<std::uint64_t>& groups = {}) {
  std::vector<LoggedTable> tables;
  for (std::size_t t = 0; t < kTables; ++t) {
    tables.push_back(
        {server + "-" + std::to_string(t), groups.empty() ? index::kNoLastGroup : groups[t]});
  }
  return tables;
}

// Some rows of a server get values, in the store, in the log and in the model.
void write(RowStore& store, StoreLog& log, std::uint64_t commit, Model& model) {
  const auto& options = store.options();
  const ShardRule rule(options.shards);
  std::vector<std::int64_t> ids, ends;
  std::vector<Row> values;
  for (std::size_t t = 0; t < kTables; ++t) {
    std::map<std::int64_t, Row> rows;
    for (auto count = engine() % 50; count > 0; --count) {
      const auto id = static_cast<std::int64_t>(engine() % kRows << (t == 1 ? 30 : 0));
      if (rule.shard(static_cast<std::uint64_t>(id)) != options.shard) continue;
      for (auto& number : rows[id]) number = static_cast<float>(engine() % 1000);
    }
    for (const auto& [id, row] : rows) {
      ids.push_back(id);
      values.push_back(row);
      model[{t, id}] = row;
    }
    ends.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const auto bytes = std::as_bytes(std::span(values));
  store.write({ids, ends}, bytes);
  log.put(commit, {ids, ends}, bytes);
}

Model rows_of(const RowStore& store) {
  Model model;
  for (std::size_t t = 0; t < kTables; ++t) {
    std::vector<std::int64_t> ids(2 * kRows);
    std::vector<Row> values(ids.size());
    const auto count = store.scan(t, -1, ids, std::as_writable_bytes(std::span(values)));
    for (std::size_t i = 0; i < count; ++i) model[{t, ids[i]}] = values[i];
  }
  return model;
}

// Writes of the next commit arrive before the one before it is made, and are not in it.
void test_commits() {
  index::SimulatedFiles files;
  Model committed;
  std::vector<std::uint64_t> groups;
  for (int opening = 0; opening < 12; ++opening) {
    auto store = store_of(0, 1);
    // in every other one all rows are appended as they arrive, where they may be
    StoreLog log(store, folders("server", groups), {.files = &files}, 0,
                 opening % 2 == 0 ? 1 : StoreLog::kMostPendingBytes);
    CHECK(rows_of(store) == committed);
    auto model = committed;
    const auto commits = engine() % 4;
    for (std::uint64_t commit = 0; commit < commits; ++commit) {
      write(store, log, commit, model);
      committed = model;
      write(store, log, commit + 1, model);
      groups = log.commit(commit);
      log.checkpoint_if_due(commit);
      CHECK(rows_of(store) == model);
    }
    // those that no mark follows, as the other servers do not make them, or rows are loaded behind
    const auto unmarked = groups.empty() ? 0 : engine() % 3;
    for (auto commit = commits; commit < commits + unmarked; ++commit) {
      write(store, log, commit, model);
      log.commit(commit);
    }
    // a folder without a commit is not opened again
    if (!groups.empty()) write(store, log, commits + unmarked, model);
    if (opening % 3 == 0) log.close();
    if (opening % 3 == 1) files.end_process();
    if (opening % 3 == 2) files.lose_power(engine);
  }
}

// Rows are in memory up to a size, then in the logs: all of them were until their commit.
void test_many_rows_before_a_commit() {
  index::SimulatedFiles inner;
  index::FileFaults faults;
  index::FaultyFiles files(inner, faults);
  auto store = store_of(0, 1);
  StoreLog log(store, folders("server"), {.files = &files}, 3, 100);
  Model model;
  const auto grows = [&](std::uint64_t commit) {
    const auto bytes = [&] { return inner.map("server-0/changes-0").bytes.size(); };
    const auto before = bytes();
    for (int writes = 0; writes < 5; ++writes) write(store, log, commit, model);
    return bytes() > before;
  };
  CHECK(grows(3));
  CHECK(!grows(4));  // the one before it is not made
  log.commit(3);
  CHECK(!grows(4));  // nor marked
  log.checkpoint_if_due(3);
  CHECK(grows(4));
  faults.operations_left = 1;
  faults.dead = true;
  thrown<std::system_error>([&] { grows(4); });
  faults.dead = false;
  CHECK(thrown<std::runtime_error>([&] { log.commit(4); }) ==
        "commit 4 lacks rows that the logs did not take: open them again");
}

// Groups of the first of two commits, where that is marked when both are in the logs.
std::vector<std::uint64_t> marked_late(index::Files& files, Model& committed) {
  auto store = store_of(0, 1);
  StoreLog log(store, folders("server"), {.files = &files, .checkpoint_log_bytes = 1});
  write(store, log, 0, committed);
  auto groups = log.commit(0);
  auto model = committed;
  write(store, log, 1, model);
  log.commit(1);
  log.checkpoint_if_due(0);
  log.wait_for_checkpoints();
  return groups;
}

// A snapshot would merge a commit that may have to be undone: it waits for the next mark.
void test_marked_after_the_next_commit() {
  index::SimulatedFiles files;
  Model committed;
  const auto groups = marked_late(files, committed);
  auto store = store_of(0, 1);
  StoreLog log(store, folders("server", groups), {.files = &files, .checkpoint_log_bytes = 1});
  CHECK(rows_of(store) == committed);
  write(store, log, 1, committed);
  log.commit(1);
  const auto logs = files.list("server-0");
  log.checkpoint_if_due(1);
  log.wait_for_checkpoints();
  CHECK(files.list("server-0") != logs);  // there is a snapshot
}

// Rows go to the servers that have them among another number of servers.
void test_other_numbers_of_servers() {
  index::SimulatedFiles files;
  Model model;
  std::map<std::string, std::vector<std::uint64_t>> groups;
  auto name = [](std::size_t shard, std::size_t shards) {
    return std::to_string(shard) + "-of-" + std::to_string(shards);
  };
  for (std::size_t shard = 0; shard < 3; ++shard) {
    auto store = store_of(shard, 3);
    StoreLog log(store, folders(name(shard, 3)), {.files = &files});
    for (std::uint64_t commit = 0; commit < 3; ++commit) {
      write(store, log, commit, model);
      groups[name(shard, 3)] = log.commit(commit);
    }
  }
  for (int opening = 0; opening < 2; ++opening) {
    Model all;
    for (std::size_t shard = 0; shard < 2; ++shard) {
      auto store = store_of(shard, 2);
      StoreLog log(store, folders(name(shard, 2)), {.files = &files});
      if (opening == 0) {
        for (std::size_t before = 0; before < 3; ++before) {
          log.adopt(folders(name(before, 3), groups[name(before, 3)]), 0);
        }
        log.commit(0);
      }
      all.merge(rows_of(store));
    }
    CHECK(all == model);
  }
}

void test_refused() {
  index::SimulatedFiles files;
  auto store = store_of(0, 1);
  CHECK(thrown<std::invalid_argument>([&] {
          StoreLog(store, {{.folder = "alone"}}, {.files = &files});
        }) == "logs are of 1 tables, need one for each of 2");
  StoreLog log(store, folders("server"), {.files = &files});
  Model model;
  write(store, log, 1, model);
  CHECK(thrown<std::invalid_argument>([&] { log.commit(2); }) ==
        "commit 2 is made before commit 1");
  log.commit(1);
  const std::vector<std::int64_t> ids{3}, ends{1, 1};
  const Row row{};
  const auto bytes = std::as_bytes(std::span(row));
  CHECK(thrown<std::invalid_argument>([&] { log.put(1, {ids, ends}, bytes); }) ==
        "rows are of commit 1, which is made already; the next one is 2");
  CHECK(thrown<std::invalid_argument>([&] { log.put(2, {ids, ends}, bytes.first(8)); }) ==
        "rows to log need values of 12 bytes each, of 2 tables");
}

}  // namespace

int main() {
  test_commits();
  test_many_rows_before_a_commit();
  test_marked_after_the_next_commit();
  test_other_numbers_of_servers();
  test_refused();
}
