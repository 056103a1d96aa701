// A durable map whose n-th file operation fails, for every n: what was acknowledged survives
// the end of the process, and what was synced also a loss of power.
#include <functional>
#include <random>
#include <string>
#include <thread>
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

Map::Options options_of(Files& files, bool background = false) {
  Map::Options options;
  options.files = &files;
  options.background = background;
  options.block_bytes = 64;
  options.accept_unsynced_loss = true;
  return options;
}

// The states that a map went through, and those that must be kept.
struct History {
  std::vector<Model> states{{}};
  std::size_t acknowledged = 0;  // the first state that the end of the process may leave
  std::size_t synced = 0;        // ... that a loss of power may leave
};

// Runs one action that would lead to `next`. If it fails, the map is unchanged, or broken and
// perhaps changed in the files.
bool attempt(Map& map, History& history, const Model& next, bool synced,
             const std::function<void()>& action) {
  auto before = history.states.back();
  auto was_acknowledged = history.acknowledged + 1 == history.states.size();
  try {
    history.states.push_back(next);
    action();
    history.acknowledged = history.states.size() - 1;
    if (synced) history.synced = history.acknowledged;
    CHECK(state_of<std::uint64_t>(map) == next);
    return true;
  } catch (const std::system_error&) {
    if (was_acknowledged) CHECK(state_of<std::uint64_t>(map) == before);
    if (!map.broken()) history.states.pop_back();
    return false;
  }
}

bool build(Map& map, History& history, std::mt19937_64& random) {
  std::vector<std::uint64_t> codes, values;
  Model next;
  for (int row = 0; row < 20; ++row) {
    codes.push_back(small_code(random, 40));
    values.push_back(random());
    next[codes.back()] = values.back();
  }
  return attempt(map, history, next, true,
                 [&] { map.build(codes.data(), values.data(), codes.size()); });
}

// Commits, checkpoints and a bulk load; every action is tried again once unless the map is broken.
void work(Files& files, History& history) {
  std::mt19937_64 random(7);  // NOLINT: the same sequence in every run
  Map map("f", options_of(files));
  for (int step = 0; step < 18 && !map.broken(); ++step) {
    if (step == 9) {
      if (!build(map, history, random) && !map.broken()) build(map, history, random);
      continue;
    }
    if (step == 5 || step == 14) {
      try {
        map.checkpoint();
        history.synced = history.acknowledged;
      } catch (const std::system_error&) {
      }
      continue;
    }
    auto next = history.states.back();
    Map::Batch batch;
    random_changes(random, batch, next, 40, 4);
    auto sync = step % 3 == 0 ? Sync::yes : Sync::no;
    auto commit = [&] { map.commit(batch, sync); };
    auto done = attempt(map, history, next, sync == Sync::yes, commit);
    if (!done && !map.broken()) attempt(map, history, next, sync == Sync::yes, commit);
  }
  map.close();
  if (!map.broken()) history.synced = history.acknowledged;
}

// Number of operations without a fault.
std::int64_t operations_of_work() {
  SimulatedFiles files;
  FileFaults faults;
  FaultyFiles faulty(files, faults);
  History history;
  work(faulty, history);
  CHECK(history.acknowledged + 1 == history.states.size() && history.states.size() == 17);
  return faults.operations;
}

void check_state(SimulatedFiles& files, const History& history, std::size_t least) {
  Map map("f", options_of(files));
  auto state = state_of<std::uint64_t>(map);
  auto found = false;
  for (auto i = least; i < history.states.size(); ++i) found = found || history.states[i] == state;
  CHECK(found);
  CHECK(files.list("f").size() <= 4);  // lock, snapshot and one log, or two: nothing is left over
  auto next = state;
  Map::Batch batch;
  batch.put(1, 1);
  next[1] = 1;
  map.commit(batch, Sync::yes);
  CHECK(state_of<std::uint64_t>(map) == next);
}

struct Kind {
  bool partly, dead;
  int error;
};

void test_countdown() {
  auto operations = operations_of_work();
  CHECK(operations > 80);
  std::mt19937_64 random(18);  // NOLINT: the same sequence in every run
  for (auto kind : {Kind{false, false, EIO}, Kind{true, false, ENOSPC}, Kind{false, true, EIO},
                    Kind{true, true, EIO}}) {
    for (std::int64_t at = 1; at <= operations; ++at) {
      SimulatedFiles files;
      FileFaults faults;
      faults.partly = kind.partly;
      faults.dead = kind.dead;
      faults.error = kind.error;
      faults.operations_left = at;
      FaultyFiles faulty(files, faults);
      History history;
      try {
        work(faulty, history);
      } catch (const std::system_error& error) {
        CHECK(error.code().value() == kind.error);
      }
      CHECK(faults.failed());
      files.end_process();
      SimulatedFiles after_end;
      after_end.copy_from(files);
      check_state(after_end, history, history.acknowledged);
      files.lose_power(random);
      check_state(files, history, history.synced);
    }
  }
}

// Power is lost at any operation, with many outcomes of what was not synced; and again while the
// folder is opened after that.
void test_loss_of_power() {
  auto operations = operations_of_work();
  std::mt19937_64 random(19);  // NOLINT: the same sequence in every run
  for (std::int64_t at = 1; at <= operations; ++at) {
    for (int outcome = 0; outcome < 4; ++outcome) {
      SimulatedFiles files;
      History history;
      for (auto left : {at, std::int64_t{1} + static_cast<std::int64_t>(random() % 12)}) {
        FileFaults faults;
        faults.dead = faults.partly = true;
        faults.operations_left = left;
        FaultyFiles faulty(files, faults);
        try {
          if (left == at) {
            work(faulty, history);
          } else {
            Map("f", options_of(faulty));
          }
        } catch (const std::system_error&) {
        }
        files.lose_power(random);
      }
      check_state(files, history, history.synced);
    }
  }
}

// The disk fills up: commits fail, the map stays as it is and works on once there is room.
void test_full_disk() {
  for (std::uint64_t capacity = 4000; capacity < 16'000; capacity += 97) {
    SimulatedFiles files;
    std::mt19937_64 random(7);  // NOLINT: the same sequence in every run
    Model model;
    Map map("f", options_of(files, true));
    files.capacity = capacity;
    for (int step = 0; step < 60; ++step) {
      auto next = model;
      Map::Batch batch;
      random_changes(random, batch, next, 200, 10);
      try {
        map.commit(batch);
        model = next;
        if (step % 10 == 9) map.checkpoint();
      } catch (const std::system_error& error) {
        CHECK(error.code().value() == ENOSPC);
        CHECK(!map.broken());
      }
      CHECK(state_of<std::uint64_t>(map) == model);
    }
    try {
      map.wait_for_checkpoint();
    } catch (const std::system_error&) {
    }
    files.capacity = ~std::uint64_t{0};
    Map::Batch batch;
    random_changes(random, batch, model, 200, 10);
    map.commit(batch, Sync::yes);
    map.checkpoint();
    map.close();
    Map again("f", options_of(files));
    CHECK(state_of<std::uint64_t>(again) == model);
  }
}

// A checkpoint, or a bulk load, after one that had failed in the background threw that one's error
// and did nothing; closing threw it although a later checkpoint had succeeded.
void test_failure_before() {
  // Returns how many operations a checkpoint has; the one of number `fails_at` fails (0: none).
  const auto run = [](std::int64_t fails_at, bool builds) -> std::int64_t {
    SimulatedFiles files;
    FileFaults faults;
    FaultyFiles faulty(files, faults);
    std::mt19937_64 random(7);  // NOLINT: the same sequence in every run
    History history;
    Map map("f", options_of(faulty, true));
    Map::Batch batch;
    random_changes(random, batch, history.states.back(), 40, 20);
    map.commit(batch);
    const auto before = faults.operations.load();
    faults.operations_left = fails_at;
    try {
      map.checkpoint();
      if (fails_at == 0) map.wait_for_checkpoint();
    } catch (const std::system_error&) {  // before the background's part
      return 0;
    }
    if (fails_at == 0) return faults.operations - before;
    while (!faults.failed()) std::this_thread::yield();
    if (builds) {
      CHECK(build(map, history, random));
    } else {
      map.checkpoint();
    }
    map.wait_for_checkpoint();
    map.close();
    Map again("f", options_of(files));
    CHECK(state_of<std::uint64_t>(again) == history.states.back());
    return 0;
  };
  const auto operations = run(0, false);
  CHECK(operations > 12);
  for (std::int64_t fails_at = 1; fails_at < operations; ++fails_at) {  // the last removes a log
    for (const bool builds : {false, true}) run(fails_at, builds);
  }
}

}  // namespace

int main() {
  test_countdown();
  test_failure_before();
  test_loss_of_power();
  test_full_disk();
}
