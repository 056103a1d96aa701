// Logs of rows on a simulated disk, against a std::map: openings with all groups and with fewer,
// after the end of the process and a loss of power.
#include "embedding/row_log.hpp"

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "index/durable/files_simulated.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

constexpr std::size_t kRowBytes = 12;
using Row = std::vector<std::byte>;
using Model = std::map<std::int64_t, Row>;

std::mt19937_64 engine(5);  // NOLINT: the same sequence in every run

RowLog opened(index::Files& files, std::uint64_t groups = index::kNoLastGroup) {
  return RowLog("table", kRowBytes, {.groups = groups, .files = &files});
}

Model loaded(RowLog& log) {
  Model model;
  log.load([&](std::span<const std::int64_t> ids, const std::byte* values) {
    CHECK(!ids.empty());
    for (auto id : ids) {
      CHECK(model.empty() || model.rbegin()->first < id);
      model[id] = Row(values, values + kRowBytes);
      values += kRowBytes;
    }
  });
  return model;
}

void change(RowChanges& changes, Model& model) {
  std::vector<std::int64_t> ids(engine() % 900);
  std::vector<std::byte> values;
  for (auto& id : ids) {
    id = static_cast<std::int64_t>(engine() % 3000 << engine() % 2 * 40);
    Row row(kRowBytes);
    for (auto& byte : row) byte = static_cast<std::byte>(engine());
    values.insert(values.end(), row.begin(), row.end());
    model[id] = row;
  }
  changes.put(ids, values.data());
}

void test_openings() {
  index::SimulatedFiles files;
  Model model;
  for (int opening = 0; opening < 30; ++opening) {
    auto log = opened(files);
    CHECK(loaded(log) == model);
    for (auto commits = engine() % 4; commits > 0; --commits) {
      RowChanges changes(kRowBytes);
      change(changes, model);
      change(changes, model);
      log.commit(changes);
      CHECK(changes.rows() == 0);
      log.checkpoint_if_due();
    }
    if (opening % 3 == 0) log.close();
    if (opening % 3 == 1) files.end_process();
    if (opening % 3 == 2) files.lose_power(engine);
  }
}

// A commit that only some servers made is undone.
void test_undone_commit() {
  index::SimulatedFiles files;
  Model model;
  std::uint64_t groups = 0;
  {
    auto log = opened(files);
    loaded(log);
    RowChanges changes(kRowBytes);
    change(changes, model);
    groups = log.commit(changes);
    auto undone = model;
    change(changes, undone);
    CHECK(log.commit(changes) > groups);
  }
  auto log = opened(files, groups);
  CHECK(loaded(log) == model);
  CHECK(log.groups() == groups);
}

void test_refused() {
  index::SimulatedFiles files;
  auto log = opened(files);
  loaded(log);
  RowChanges changes(kRowBytes + 4);
  const auto text = thrown<std::invalid_argument>([&] { log.commit(changes); });
  CHECK(text == "changes have rows of 16 bytes, the log's have 12");
}

}  // namespace

int main() {
  test_openings();
  test_undone_commit();
  test_refused();
}
