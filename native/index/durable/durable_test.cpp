// Durable maps on a simulated disk: against a std::map over openings, checkpoints and bulk loads,
// before and after the tree is built; files that are missing, cut or altered at any byte; two
// openings at once; memory that ends.
#include "index/durable/durable.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "index/durable/durable_testing.hpp"
#include "index/durable/files_faulty.hpp"
#include "index/durable/files_simulated.hpp"
#include "index/memory/concurrent.hpp"

using namespace headrace;
using namespace headrace::index;
using namespace headrace::index::testing;

namespace {

template <template <class, class...> class Tree>
using Durable = DurableMap<std::uint64_t, Tree<std::uint64_t>>;
using Map = Durable<StandardMap>;
using Model = State<std::uint64_t>;

std::mt19937_64 engine(18);  // NOLINT: the same sequence in every run

template <class Map = Durable<StandardMap>>
typename Map::Options options_of(Files& files, bool background = false) {
  typename Map::Options options;
  options.files = &files;
  options.background = background;
  options.build_at_once = 0;
  options.block_bytes = 64;
  return options;
}

template <class Map>
void commit(Map& map, Model& model, std::size_t count, Sync sync = Sync::no) {
  typename Map::Batch batch;
  random_changes(engine, batch, model, 300, count);
  map.commit(batch, sync);
}

template <class Map>
void build(Map& map, Model& model) {
  std::vector<std::uint64_t> codes, values;
  model.clear();
  for (int row = 0; row < 150; ++row) {
    codes.push_back(small_code(engine, 300));
    values.push_back(engine());
    model[codes.back()] = values.back();
  }
  map.build(codes.data(), values.data(), codes.size());
}

template <class Map>
void test_against_model(bool background) {
  SimulatedFiles files;
  Model model;
  std::uint64_t groups = 0;
  for (int opening = 0; opening < 30; ++opening) {
    Map map("f", options_of<Map>(files, background));
    CHECK(state_of<std::uint64_t>(map, 1 + engine() % 400) == model);
    CHECK(map.folder().sequence() == groups);
    for (auto left = engine() % 10; left > 0; --left) {
      commit(map, model, engine() % 40);
      groups = map.folder().sequence();
      auto action = engine() % 12;
      if (action == 0) build(map, model);
      if (action == 1) map.checkpoint();
      if (action == 2) map.sync();
      if (action == 3) CHECK(map.tree().size() == model.size());
      CHECK(state_of<std::uint64_t>(map) == model);
    }
    if (opening % 3 == 0) map.close();
    if (opening % 3 == 1) files.end_process();
  }
}

// Everything works while the tree is not built, and each commit then moves some changes into it.
void test_before_the_tree() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f", options_of(files));
    build(map, model);
    for (int group = 0; group < 5; ++group) commit(map, model, 30);
  }
  Hooks::hold_build = true;
  Map map("f", options_of(files, true));
  for (int group = 0; group < 20; ++group) {
    CHECK(!map.in_tree());
    for (std::size_t step : {1, 7, 300}) CHECK(state_of<std::uint64_t>(map, step) == model);
    commit(map, model, 30);
  }
  map.checkpoint();
  map.wait_for_checkpoint();
  CHECK(state_of<std::uint64_t>(map) == model && map.folder().log_bytes() < 100);
  Hooks::hold_build = false;
  while (!map.in_tree()) {
    commit(map, model, 1);
    CHECK(state_of<std::uint64_t>(map) == model);
  }
  std::array<std::uint64_t, 3> codes{0, 1, ~std::uint64_t{0}}, values{};
  std::array<bool, 3> found{};
  auto hits = map.get(codes.data(), 3, values.data(), found.data());
  CHECK(hits == model.count(codes[0]) + model.count(codes[1]) + model.count(codes[2]));
  map.close();
  thrown<std::logic_error>([&] { commit(map, model, 1); });
}

// A map waited for its tree to be closed, as long as all rows took to be read.
void test_close_before_the_tree() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f", options_of(files));
    build(map, model);
  }
  Hooks::hold_build = true;
  Map map("f", options_of(files, true));
  map.close();
  Map other("f", options_of(files, true));
  CHECK(!map.in_tree() && state_of<std::uint64_t>(map) == model);
  Hooks::hold_build = false;
  CHECK(map.tree().size() == model.size() && other.tree().size() == model.size());
}

// The snapshot that a map was opened from took its place on the disk until the map was closed.
void test_replaced_snapshots_are_released() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f", options_of(files));
    build(map, model);
  }
  for (const bool background : {false, true}) {
    Map map("f", options_of(files, background));
    const std::weak_ptr<const Snapshot> opened = map.folder().snapshot();
    CHECK(!opened.expired() && map.tree().size() == model.size());
    commit(map, model, 10);
    map.checkpoint();
    map.wait_for_checkpoint();
    CHECK(opened.expired() && state_of<std::uint64_t>(map) == model);
  }
}

// Readers beside the writer, before, while and after the tree is built: a code's value never goes
// back, whichever of the maps it is read from.
void test_readers_beside_the_writer() {
  using Shared = DurableMap<std::uint64_t, CodeMap<std::uint64_t, index::Shared>>;
  constexpr std::uint64_t kRows = 20'000, kRounds = 300;
  SimulatedFiles files;
  {
    Shared map("f", options_of<Shared>(files));
    std::vector<std::uint64_t> codes(kRows), values(kRows);
    std::iota(codes.begin(), codes.end(), 0);
    map.build(codes.data(), values.data(), kRows);
  }
  Shared map("f", options_of<Shared>(files, true));
  std::atomic<bool> ended = false;
  std::thread reader([&] {
    std::vector<std::uint64_t> seen(100);
    for (std::uint64_t code = 0; !ended; code = (code + 7) % seen.size()) {
      std::uint64_t value = 0;
      CHECK(map.get(code, value) && value >= seen[code]);
      seen[code] = value;
    }
  });
  for (std::uint64_t round = 1; round <= kRounds || !map.in_tree(); ++round) {
    Shared::Batch batch;
    for (std::uint64_t code = 0; code < 100; ++code) batch.put(code, round);
    map.commit(batch);
  }
  ended = true;
  reader.join();
}

void test_width(auto value_of) {
  using Value = decltype(value_of(0));
  using Map = DurableMap<Value>;
  SimulatedFiles files;
  typename Map::Options options;
  options.files = &files;
  for (int opening = 0; opening < 3; ++opening) {
    Map map("f", options);
    typename Map::Batch batch;
    for (int i = 0; i < 50; ++i) batch.put(engine() % 1000, value_of(i));
    auto before = map.size();
    map.commit(batch);
    CHECK(map.size() > before);
    if (opening == 1) map.checkpoint();
    state_of<Value>(map);
  }
}

void test_widths() {
  struct Row {
    std::uint8_t bytes[300];
  };
  test_width([](int) { return Nothing{}; });
  test_width([](int i) { return static_cast<std::uint32_t>(i); });
  test_width([](int i) { return Row{{static_cast<std::uint8_t>(i), 1, 2}}; });
  SimulatedFiles files;
  DurableOptions options;
  options.files = &files;
  DurableFolder(std::string("f"), 4, options);
  auto text =
      thrown<std::invalid_argument>([&] { DurableFolder(std::string("f"), 8, options).load(); });
  CHECK(text.starts_with("f/changes-0: holds keys that are unsigned integers and values of 4"));
}

void test_lock() {
  SimulatedFiles files;
  Map map("f", options_of(files));
  auto text = thrown<std::runtime_error>([&] { Map("f", options_of(files)); });
  CHECK(text.find("f/lock: the folder is open already") == 0);
  map.close();
  Map("f", options_of(files));
}

// Checkpoints begin by themselves, and the folder keeps one snapshot and one log.
void test_automatic_checkpoints() {
  SimulatedFiles files;
  Model model;
  auto options = options_of(files, true);
  options.checkpoint_log_bytes = 2000;
  Map map("f", options);
  auto number = [&map] {
    const auto& snapshot = map.folder().snapshot();
    return snapshot ? snapshot->generation() : 0;
  };
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (number() < 3) {
    commit(map, model, 20);
    CHECK(std::chrono::steady_clock::now() < deadline);
  }
  map.wait_for_checkpoint();
  CHECK(files.list("f").size() == 2);
  CHECK(state_of<std::uint64_t>(map) == model);
}

void test_missing_files() {
  SimulatedFiles whole;
  Model model;
  {
    Map map("f", options_of(whole));
    commit(map, model, 30);
    map.checkpoint();
    commit(map, model, 30);
  }
  for (const auto& name : {"snapshot-1", "changes-1"}) {
    SimulatedFiles files;
    files.copy_from(whole);
    files.remove(join_path("f", name));
    auto text = thrown<DamageError>([&] { Map("f", options_of(files)); });
    CHECK(text.find("is missing") != std::string::npos);
  }
  SimulatedFiles files;
  files.copy_from(whole);
  files.bytes("f/snapshot-1").swap(files.bytes("f/changes-1"));
  thrown<DamageError>([&] { Map("f", options_of(files)); });
}

// A folder with a snapshot and two logs, as a failed checkpoint leaves it, and its states.
std::vector<Model> folder_with_history(SimulatedFiles& files) {
  FileFaults faults;
  FaultyFiles faulty(files, faults);
  std::vector<Model> states{{}};
  auto next = [&](Map& map) {
    auto model = states.back();
    commit(map, model, 3, Sync::yes);
    states.push_back(model);
  };
  Map map("f", options_of(faulty));
  for (int group = 0; group < 8; ++group) next(map);
  map.checkpoint();
  for (int group = 0; group < 3; ++group) next(map);
  faults.operations_left = 9;  // within the snapshot, after the next log was begun
  thrown<std::system_error>([&] { map.checkpoint(); });
  CHECK(!map.broken());
  for (int group = 0; group < 3; ++group) next(map);
  files.end_process();
  CHECK(files.list("f").size() == 3);
  return states;
}

// Refused, or the state after some group: of a log's end after the last group only. A state that
// lacks a group that is followed by others is wrong.
void check_refused_or_whole(SimulatedFiles& files, const std::vector<Model>& states,
                            std::size_t least, const std::string& path) {
  try {
    Map map("f", options_of(files, true));
    auto groups = map.folder().sequence();
    CHECK(groups >= least && groups < states.size());
    CHECK(state_of<std::uint64_t>(map) == states[groups]);
  } catch (const DamageError& error) {
    CHECK(std::string(error.what()).find(path) != std::string::npos);
  } catch (const std::invalid_argument& error) {
    CHECK(std::string(error.what()).find(path) != std::string::npos);
  }
}

void test_cut_or_altered_anywhere() {
  SimulatedFiles whole;
  auto states = folder_with_history(whole);
  for (const auto& name : whole.list("f")) {
    auto path = join_path("f", name);
    auto bytes = whole.bytes(path);
    auto newest_log = name == "changes-2";
    for (std::size_t at = 0; at <= bytes.size(); ++at) {
      SimulatedFiles files;
      files.copy_from(whole);
      files.bytes(path).resize(at);
      check_refused_or_whole(files, states, newest_log ? 11 : 14, path);
      if (at == bytes.size()) break;
      if (name.starts_with("snapshot") && at > 200 && at < 4000 && at % 64 != 0) continue;
      files.copy_from(whole);
      files.bytes(path)[at] ^= static_cast<std::byte>(1U << engine() % 8);
      check_refused_or_whole(files, states, newest_log ? 13 : 14, path);
    }
  }
}

// What was closed opens as it was, or not at all and naming a file of the folder.
void check_refused_or_equal(SimulatedFiles& files, const Model& model, bool refused) {
  const auto listed = files.list("f");
  try {
    Map map("f", options_of(files));
    CHECK(!refused && state_of<std::uint64_t>(map) == model);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    CHECK(text.starts_with("f/") && files.list("f") == listed);
  }
}

// A log that was cut after close(), or removed with the snapshot, opened without an error: with the
// groups before the cut, or empty, as if a failure had ended it there.
void test_closed_then_cut_or_removed() {
  for (const bool checkpoint : {false, true}) {
    SimulatedFiles whole;
    Model model;
    {
      Map map("f", options_of(whole));
      for (int group = 0; group < 3; ++group) commit(map, model, 4);
      if (checkpoint) map.checkpoint();
      for (int group = 0; group < 3; ++group) commit(map, model, 4);
      map.close();
    }
    for (const auto& name : whole.list("f")) {
      const auto path = join_path("f", name);
      const auto bytes = whole.bytes(path);
      SimulatedFiles files;
      for (std::size_t at = 0; at <= bytes.size(); ++at) {
        files.copy_from(whole);
        files.bytes(path).resize(at);
        // The log ends with a mark that has no changes: of its 32 bytes none is missed.
        const auto needed = bytes.size() - (name.starts_with("changes") ? 32 : 0);
        check_refused_or_equal(files, model, at < needed);
        if (at == bytes.size()) break;
        files.copy_from(whole);
        files.bytes(path)[at] ^= static_cast<std::byte>(1U << engine() % 8);
        check_refused_or_equal(files, model, false);
      }
      files.copy_from(whole);
      files.remove(path);
      check_refused_or_equal(files, model, name != "closed");
    }
    // What is left opens on request, and is the whole at the next opening.
    const std::string log = checkpoint ? "f/changes-1" : "f/changes-0";
    for (std::size_t at = 0; at <= whole.bytes(log).size(); ++at) {
      SimulatedFiles files;
      files.copy_from(whole);
      files.bytes(log).resize(at);
      if (at == 0) files.remove(log);
      auto options = options_of(files);
      options.accept_closed_loss = true;
      if (!checkpoint && at > 0 && at < sizeof(change_log::Header)) {
        CHECK(!thrown<DamageError>([&] { Map("f", options); }).empty());
        CHECK(files.bytes("f/closed").size() == sizeof(ClosingRecord));
        continue;
      }
      Model left;
      {
        Map map("f", options);
        CHECK(map.size() <= model.size() && map.folder().sequence() >= (checkpoint ? 3 : 0));
        commit(map, left, 4);
        left = state_of<std::uint64_t>(map);
        map.close();
      }
      Map map("f", options_of(files));
      CHECK(state_of<std::uint64_t>(map) == left);
    }
    SimulatedFiles emptied;
    emptied.copy_from(whole);
    for (const auto& name : whole.list("f")) {
      if (name != "closed") emptied.remove(join_path("f", name));
    }
    const auto text = thrown<DamageError>([&] { Map("f", options_of(emptied)); });
    CHECK(text.find("is missing") != std::string::npos);
    CHECK(text.find("open what is left with accept_closed_loss") != std::string::npos);
  }
}

// The record of a closing holds for what is committed later, and after a failure: the groups of
// before are present or the folder is refused. Without the record what is left opens.
void test_closed_then_opened_again() {
  SimulatedFiles whole;
  Model closed, model;
  {
    Map map("f", options_of(whole));
    for (int group = 0; group < 4; ++group) commit(map, closed, 4);
  }
  const auto bytes = whole.bytes("f/changes-0").size();
  model = closed;
  {
    Map map("f", options_of(whole));
    for (int group = 0; group < 4; ++group) commit(map, model, 4);
    whole.end_process();
  }
  SimulatedFiles files;
  for (std::size_t at = 0; at <= whole.bytes("f/changes-0").size(); ++at) {
    files.copy_from(whole);
    files.bytes("f/changes-0").resize(at);
    if (at >= bytes) {
      Map map("f", options_of(files));
      CHECK(map.folder().sequence() >= 4);
    } else if (at < bytes - 32) {
      CHECK(!thrown<DamageError>([&] { Map("f", options_of(files)); }).empty());
    }
  }
  files.copy_from(whole);
  files.bytes("f/changes-0").resize(bytes - 40);
  const auto text = thrown<DamageError>([&] { Map("f", options_of(files)); });
  CHECK(text.find("after group 3; 1 groups after it are missing") != std::string::npos);
  files.remove("f/closed");
  CHECK(Map("f", options_of(files)).folder().sequence() == 3);
  Map(std::string("f"), options_of(files)).close();  // recorded anew
  CHECK(files.bytes("f/closed").size() == sizeof(ClosingRecord));
}

// Damage that the thread finds which builds the tree: commits name the block, and so do lookups.
void test_damage_found_later() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f", options_of(files));
    build(map, model);
  }
  files.bytes("f/snapshot-1")[snapshot::kHeaderBytes + 64] ^= std::byte{4};
  Map map("f", options_of(files, true));
  auto text = thrown<DamageError>([&] { map.tree(); });
  CHECK(text.starts_with("f/snapshot-1: block 1 of "));
  CHECK(thrown<DamageError>([&] { commit(map, model, 1); }) == text);
  CHECK(thrown<DamageError>([&] { state_of<std::uint64_t>(map); }) == text);
  std::uint64_t value = 0;
  auto first = map.folder().snapshot()->code(0);
  CHECK(map.get(first, value));
  files.end_process();
  CHECK(thrown<DamageError>([&] { Map("f", options_of(files)); }) == text);
}

// A group that is damaged before a checkpoint is not left out of the snapshot.
void test_damage_before_a_checkpoint() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f/", options_of(files));
    CHECK(map.folder().path() == "f");
    for (int group = 0; group < 3; ++group) commit(map, model, 5, Sync::yes);
    files.bytes("f/changes-0").back() ^= std::byte{1};
    auto text = thrown<DamageError>([&] { map.checkpoint(); });
    CHECK(text.find("f/changes-0: whole groups end at offset") == 0);
    CHECK(state_of<std::uint64_t>(map) == model);
  }
  CHECK(!thrown<DamageError>([&] { Map("f", options_of(files)); }).empty());
}

// A map whose closing fails takes no more changes: another may have the folder by then.
void test_failed_close() {
  for (std::int64_t operation = 1;; ++operation) {
    SimulatedFiles files;
    FileFaults faults;
    FaultyFiles faulty(files, faults);
    Model model;
    Map map("f", options_of(faulty));
    commit(map, model, 5);
    faults.error = ENOSPC;
    faults.operations_left = operation;
    try {
      map.close();
    } catch (const std::system_error&) {
    }
    const bool failed = faults.operations_left <= 0;
    faults.operations_left = 0;
    auto copy = model;
    CHECK(!thrown<std::logic_error>([&] { commit(map, copy, 1); }).empty());
    Map other("f", options_of(files));
    CHECK(state_of<std::uint64_t>(other) == model);
    if (!failed) return;
  }
}

// Memory ends within a group that is in the log: it is present as a whole at the next opening.
void test_exhausted_memory() {
  SimulatedFiles files;
  Model model;
  {
    Map map("f", options_of(files));
    commit(map, model, 30);
    Hooks::changes_left = 5;
    thrown<std::bad_alloc>([&] { commit(map, model, 30); });
    CHECK(map.broken());
    auto copy = model;
    auto text = thrown<std::runtime_error>([&] { commit(map, copy, 1); });
    CHECK(text.find("open the folder again") != std::string::npos);
  }
  Map map("f", options_of(files));
  CHECK(state_of<std::uint64_t>(map) == model);
}

}  // namespace

int main() {
  test_damage_before_a_checkpoint();
  test_failed_close();
  for (bool background : {false, true}) {
    test_against_model<Durable<StandardMap>>(background);
    test_against_model<Durable<CodeMap>>(background);
  }
  test_before_the_tree();
  test_close_before_the_tree();
  test_replaced_snapshots_are_released();
  test_readers_beside_the_writer();
  test_widths();
  test_lock();
  test_automatic_checkpoints();
  test_missing_files();
  test_cut_or_altered_anywhere();
  test_closed_then_cut_or_removed();
  test_closed_then_opened_again();
  test_damage_found_later();
  test_exhausted_memory();
}
