// Change logs: round trips, logs cut or altered at any byte, groups that were never synced, and
// writes that fail.
#include "index/durable/change_log.hpp"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/durable/change_log_reader.hpp"
#include "index/durable/files_faulty.hpp"
#include "index/durable/files_simulated.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using State = std::map<std::uint64_t, std::uint32_t>;
constexpr RowFormat kFormat{4};
const std::string kPath = "f/changes-2";

std::mt19937_64 engine(18);  // NOLINT: the same sequence in every run

Changes random_changes(State& state) {
  Changes changes(kFormat.width);
  for (auto left = 1 + engine() % 5; left > 0; --left) {
    auto code = engine() % 20;
    auto value = static_cast<std::uint32_t>(engine());
    if (engine() % 3 == 0) {
      changes.erase(code);
      state.erase(code);
    } else {
      changes.put(code, &value);
      state[code] = value;
    }
  }
  return changes;
}

// A log of some groups, the states after each, and where each ends.
struct Written {
  std::vector<State> states{{}};
  std::vector<std::uint64_t> ends{sizeof(change_log::Header)};
};

ChangeLog create(Files& files) {
  ChangeLog log(files, kPath, {kFormat, 2, 5, 100});
  log.show();
  return log;
}

Written write_groups(ChangeLog& log, int groups, bool sync) {
  Written written;
  for (int group = 0; group < groups; ++group) {
    auto state = written.states.back();
    auto changes = random_changes(state);
    log.append(changes, sync);
    written.states.push_back(state);
    written.ends.push_back(log.bytes());
  }
  return written;
}

struct Read {
  State state;
  ChangeLog::End end;
};

Read read(Files& files, bool accept_unsynced_loss = false) {
  Read read;
  auto visit = [&read](change_log::Operation operation, std::uint64_t code,
                       const std::byte* value) {
    if (operation == change_log::Operation::erase) {
      read.state.erase(code);
    } else {
      std::memcpy(&read.state[code], value, sizeof(std::uint32_t));
    }
  };
  read.end = ChangeLogReader(files, kPath, kFormat).replay(visit, accept_unsynced_loss);
  return read;
}

void test_round_trip() {
  SimulatedFiles files;
  auto log = create(files);
  auto written = write_groups(log, 30, false);
  auto found = read(files);
  CHECK(found.state == written.states.back());
  CHECK(found.end.bytes == log.bytes() && found.end.sequence == 35);
  ChangeLog again(files, kPath, 2, found.end, log.bytes());
  auto state = written.states.back();
  auto changes = random_changes(state);
  again.append(changes, true);
  CHECK(read(files).state == state && read(files).end.sequence == 36);
  again.close();
  CHECK(read(files).state == state && read(files).end.sequence == 36);
}

void test_cut_anywhere() {
  SimulatedFiles files;
  auto log = create(files);
  auto written = write_groups(log, 12, false);
  auto whole = files.bytes(kPath);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    files.bytes(kPath) = whole;
    files.bytes(kPath).resize(bytes);
    if (bytes < sizeof(change_log::Header)) {
      thrown<DamageError>([&] { read(files); });
      continue;
    }
    std::size_t groups = 0;
    while (groups + 1 < written.ends.size() && written.ends[groups + 1] <= bytes) ++groups;
    auto found = read(files);
    CHECK(found.state == written.states[groups] && found.end.bytes == written.ends[groups]);
  }
}

// A damaged group that others follow is refused, naming its offset; a last one is ignored, unless
// the log was closed.
void test_altered_anywhere(bool closed) {
  SimulatedFiles files;
  auto log = create(files);
  auto written = write_groups(log, 8, true);
  if (closed) log.close();
  auto last = written.ends[7];
  auto& bytes = files.bytes(kPath);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto flipped = static_cast<std::byte>(1U << engine() % 8);
    bytes[at] ^= flipped;
    if (at >= sizeof(change_log::Header) && at >= (closed ? written.ends[8] : last)) {
      CHECK(read(files).state == written.states[closed ? 8 : 7]);
    } else {
      auto text = thrown<DamageError>([&] { read(files); });
      CHECK(text.starts_with(kPath));
      CHECK(thrown<DamageError>([&] { read(files, true); }) == text);
      std::size_t group = 0;
      while (group + 1 < written.ends.size() && written.ends[group + 1] <= at) ++group;
      if (at >= sizeof(change_log::Header)) {
        auto offset = "the group at offset " + std::to_string(written.ends[group]) + ",";
        CHECK(text.find(offset) != std::string::npos);
        CHECK(text.find("it had been synced") != std::string::npos);
      }
    }
    bytes[at] ^= flipped;
  }
}

// Without sync, the system may have written a later group and not an earlier one.
void test_unsynced_loss() {
  SimulatedFiles files;
  auto log = create(files);
  auto synced = write_groups(log, 3, true);
  auto state = synced.states.back();
  std::vector<std::uint64_t> ends{log.bytes()};
  for (int group = 0; group < 3; ++group) {
    auto changes = random_changes(state);
    log.append(changes, false);
    ends.push_back(log.bytes());
  }
  auto& bytes = files.bytes(kPath);
  bytes[ends[1] + 40] ^= std::byte{1};
  auto text = thrown<DamageError>([&] { read(files); });
  CHECK(text.find("accept_unsynced_loss") != std::string::npos);
  CHECK(read(files, true).end.bytes == ends[1]);
  bytes[synced.ends[1] + 40] ^= std::byte{1};
  text = thrown<DamageError>([&] { read(files, true); });
  CHECK(text.find("it had been synced") != std::string::npos);
}

// A value holds the bytes of a group of the same log: it does not pass for one.
void test_group_within_a_value() {
  SimulatedFiles files;
  constexpr std::uint32_t kWidth = 49;
  ChangeLog log(files, kPath, {{kWidth}, 2, 5, 100});
  log.show();
  Changes inner(8);
  const std::uint64_t value = 7;
  inner.put(1, &value);
  auto group = inner.group(2, log.bytes() + 200, 6, 0);
  CHECK(group.size() == kWidth);
  Changes outer(kWidth);
  for (std::uint64_t code = 0; code < 20; ++code) outer.put(code, group.data());
  log.append(outer, false);
  auto& bytes = files.bytes(kPath);
  bytes.pop_back();
  auto none = [](change_log::Operation, std::uint64_t, const std::byte*) { CHECK(false); };
  CHECK(ChangeLogReader(files, kPath, {kWidth}).replay(none).sequence == 5);
}

// A write that fails leaves a log that ends with the group before, and takes the changes again.
void test_failed_writes() {
  for (bool partly : {false, true}) {
    SimulatedFiles files;
    FileFaults faults;
    faults.partly = partly;
    FaultyFiles faulty(files, faults);
    auto log = create(faulty);
    auto state = write_groups(log, 2, false).states.back();
    auto changes = random_changes(state);
    faults.operations_left = 1;
    thrown<std::system_error>([&] { log.append(changes, true); });
    CHECK(!log.broken() && read(files).end.sequence == 7);
    log.append(changes, true);
    CHECK(read(files).state == state && read(files).end.sequence == 8);
    faults.operations_left = 2;  // the sync
    thrown<std::system_error>([&] { log.append(changes, true); });
    CHECK(log.broken());
    auto text = thrown<std::runtime_error>([&] { log.append(changes, false); });
    CHECK(text.find("open the folder again") != std::string::npos);
  }
}

void test_full_disk() {
  SimulatedFiles files;
  auto log = create(files);
  auto state = write_groups(log, 2, false).states.back();
  files.capacity = log.bytes() + 10;
  auto changes = random_changes(state);
  auto text = thrown<std::system_error>([&] { log.append(changes, false); });
  CHECK(text.find("No space left") != std::string::npos);
  CHECK(files.bytes(kPath).size() == log.bytes());
  files.capacity = 10'000;
  log.append(changes, false);
  CHECK(read(files).state == state);
}

void test_short_writes() {
  SimulatedFiles files;
  FileFaults faults;
  faults.most_bytes = 5;
  FaultyFiles faulty(files, faults);
  auto log = create(faulty);
  CHECK(read(files).state == State{});
  auto written = write_groups(log, 10, true);
  CHECK(read(files).state == written.states.back());
}

}  // namespace

int main() {
  test_round_trip();
  test_cut_anywhere();
  test_altered_anywhere(false);
  test_altered_anywhere(true);
  test_unsynced_loss();
  test_group_within_a_value();
  test_failed_writes();
  test_full_disk();
  test_short_writes();
}
