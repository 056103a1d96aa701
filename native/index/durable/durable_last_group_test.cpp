// Folders that are opened with their groups up to one of them: state and files are as if those
// after it had never been committed, also if the opening fails in any of its operations.
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/durable/durable.hpp"
#include "index/durable/durable_testing.hpp"
#include "index/durable/files_faulty.hpp"
#include "index/durable/files_simulated.hpp"

using namespace headrace;
using namespace headrace::index;
using namespace headrace::index::testing;

namespace {

using Map = DurableMap<std::uint64_t, StandardMap<std::uint64_t>>;
using Model = State<std::uint64_t>;

std::mt19937_64 engine(27);  // NOLINT: the same sequence in every run

Map::Options options_of(Files& files, std::uint64_t last_group = kNoLastGroup) {
  Map::Options options;
  options.files = &files;
  options.background = false;
  options.automatic_checkpoints = false;
  options.last_group = last_group;
  options.block_bytes = 64;
  return options;
}

// A folder after its groups, and its rows after each of them.
struct History {
  SimulatedFiles files;
  std::vector<Model> models{{}};
  std::size_t snapshot = 0;  // the group that the snapshot has
};

void commit(Map& map, std::vector<Model>& models) {
  auto next = models.back();
  Map::Batch batch;
  random_changes(engine, batch, next, 60, 1 + engine() % 12);
  map.commit(batch, Sync::yes);
  models.push_back(next);
}

// Groups in three logs after a snapshot: two checkpoints begin a log each, and fail.
void fill(History& history, bool closed) {
  FileFaults faults;
  FaultyFiles faulty(history.files, faults);
  Map map("f", options_of(faulty));
  for (int group = 0; group < 4; ++group) commit(map, history.models);
  map.checkpoint();
  history.snapshot = history.models.size() - 1;
  for (auto log : {0, 1, 2}) {
    for (int group = 0; group < 3; ++group) commit(map, history.models);
    if (log == 2) break;
    const auto logs = history.files.list("f").size();
    faults.operations_left = 9;  // within the snapshot
    thrown<std::system_error>([&] { map.checkpoint(); });
    CHECK(history.files.list("f").size() > logs);
  }
  if (closed) map.close();
  history.files.end_process();
}

void check_opened_at(SimulatedFiles& files, const History& history, std::size_t group) {
  auto models =
      std::vector(history.models.begin(), history.models.begin() + static_cast<long>(group) + 1);
  {
    Map map("f", options_of(files, group));
    CHECK(map.folder().sequence() == group);
    CHECK(state_of<std::uint64_t>(map) == models.back());
    commit(map, models);
    files.end_process();
  }
  Map map("f", options_of(files));
  CHECK(map.folder().sequence() == group + 1);
  CHECK(state_of<std::uint64_t>(map) == models.back());
}

void test_every_group() {
  for (bool closed : {false, true}) {
    History history;
    fill(history, closed);
    const auto groups = history.models.size() - 1;
    for (auto group = history.snapshot; group <= groups; ++group) {
      SimulatedFiles files;
      files.copy_from(history.files);
      check_opened_at(files, history, group);
    }
    auto& files = history.files;
    const auto merged =
        thrown<DamageError>([&] { Map("f", options_of(files, history.snapshot - 1)); });
    CHECK(merged.find("has 4 groups, 3 are wanted") != std::string::npos);
    const auto missing = thrown<DamageError>([&] { Map("f", options_of(files, groups + 1)); });
    CHECK(missing.find("has groups up to 13, 14 are wanted") != std::string::npos);
    CHECK(state_of<std::uint64_t>(Map("f", options_of(files))) == history.models.back());
  }
}

// An opening that fails in any operation, and the power with it, is done again as a whole.
void test_countdown() {
  for (bool closed : {false, true}) {
    History history;
    fill(history, closed);
    const auto group = history.snapshot + 2;
    auto failures = 0;
    for (std::int64_t at = 1;; ++at) {
      SimulatedFiles files;
      files.copy_from(history.files);
      FileFaults faults;
      faults.dead = true;
      faults.operations_left = at;
      FaultyFiles faulty(files, faults);
      try {
        Map("f", options_of(faulty, group));
      } catch (const std::system_error&) {
      }
      if (!faults.failed()) break;
      ++failures;
      if (at % 2 == 0) files.end_process();
      if (at % 2 == 1) files.lose_power(engine);
      check_opened_at(files, history, group);
    }
    CHECK(failures > 10);
  }
}

// A checkpoint that is due waits until it is asked for.
void test_checkpoints_on_demand() {
  SimulatedFiles files;
  std::vector<Model> models{{}};
  auto options = options_of(files);
  options.background = true;
  options.checkpoint_log_bytes = 2000;
  Map map("f", options);
  map.checkpoint_if_due();
  while (map.folder().log_bytes() < 4000) commit(map, models);
  map.wait_for_checkpoint();
  CHECK(!map.folder().snapshot());
  map.checkpoint_if_due();
  map.wait_for_checkpoint();
  CHECK(map.folder().snapshot()->sequence() == models.size() - 1);
  CHECK(state_of<std::uint64_t>(map) == models.back());
}

}  // namespace

int main() {
  test_every_group();
  test_countdown();
  test_checkpoints_on_demand();
}
