// A process that writes to a durable map is killed at random times, again and again in one folder:
// every change that it acknowledged is present at the next opening, and groups are whole.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "check.hpp"
#include "index/durable/durable.hpp"
#include "index/durable/durable_testing.hpp"

using namespace headrace;
using namespace headrace::index;
using namespace headrace::index::testing;

namespace {

using Map = DurableMap<std::uint64_t, StandardMap<std::uint64_t>>;
constexpr int kKills = 60;
constexpr int kMostMilliseconds = 40;
constexpr std::uint64_t kLeastGroups = 100;
constexpr std::uint64_t kCodes = 3000;

Map::Options options() {
  Map::Options options;
  options.checkpoint_log_bytes = 100'000;
  options.build_at_once = 100;
  return options;
}

// The changes of a group follow from its number.
template <class Batch>
void changes_of(std::uint64_t group, Batch& batch, State<std::uint64_t>& state) {
  std::mt19937_64 random(group);
  random_changes(random, batch, state, kCodes, 1 + random() % 50);
}

// Commits groups and writes the number of each to the pipe, until it is killed.
[[noreturn]] void write_groups(const std::string& folder, int acknowledged) {
  {
    Map map(folder, options());
    State<std::uint64_t> unused;
    for (;;) {
      Map::Batch batch;
      auto group = map.folder().sequence() + 1;
      changes_of(group, batch, unused);
      map.commit(batch, group % 64 == 0 ? Sync::yes : Sync::no);
      if (::write(acknowledged, &group, sizeof group) != sizeof group) ::_exit(1);
      if (group % 300 == 0) map.checkpoint();
    }
  }
}

// The last number in a pipe whose writers have ended; `before` if there is none.
std::uint64_t last_number(int pipe, std::uint64_t before) {
  std::uint64_t number = 0;
  while (::read(pipe, &number, sizeof number) == sizeof number) before = number;
  return before;
}

// Starts a writer, kills it after some time, and returns the last group that it acknowledged. The
// pipe is read meanwhile, so that the writer never waits.
std::uint64_t killed_writer(const std::string& folder, std::chrono::milliseconds after,
                            std::uint64_t before) {
  int ends[2];
  CHECK(::pipe(ends) == 0);
  auto writer = ::fork();
  CHECK(writer >= 0);
  if (writer == 0) {
    ::close(ends[0]);
    write_groups(folder, ends[1]);
  }
  ::close(ends[1]);
  std::thread killer([&] {
    std::this_thread::sleep_for(after);
    ::kill(writer, SIGKILL);
  });
  auto last = last_number(ends[0], before);
  killer.join();
  int status = 0;
  CHECK(::waitpid(writer, &status, 0) == writer);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ::close(ends[0]);
  return last;
}

void test_kills(const std::string& folder) {
  std::mt19937_64 random(18);  // NOLINT: times differ anyway
  State<std::uint64_t> model;
  std::uint64_t in_model = 0, acknowledged = 0;
  // A slow or busy machine needs more kills, and more time for each, to be killed in commits.
  int kills = 0;
  for (; kills < kKills || acknowledged <= kLeastGroups; ++kills) {
    std::chrono::milliseconds after(random() % (kMostMilliseconds * (1 + kills / kKills)));
    acknowledged = killed_writer(folder, after, acknowledged);
    Map map(folder, options());
    auto groups = map.folder().sequence();
    CHECK(groups == acknowledged || groups == acknowledged + 1);
    Map::Batch unused;
    while (in_model < groups) changes_of(++in_model, unused, model);
    CHECK(state_of<std::uint64_t>(map) == model);
    acknowledged = groups;
  }
  std::printf("%d kills, %llu groups\n", kills, static_cast<unsigned long long>(acknowledged));
}

// The lock is the system's: a second process is refused, and one that was killed holds none.
void test_lock(const std::string& folder) {
  int ends[2];
  CHECK(::pipe(ends) == 0);
  auto other = ::fork();  // before the map starts its loading thread, which a child would lack
  CHECK(other >= 0);
  if (other == 0) {
    char is_open = 0;
    CHECK(::read(ends[0], &is_open, 1) == 1);
    auto text = thrown<std::runtime_error>([&] { Map(folder, options()); });
    ::_exit(text.find("is open already") == std::string::npos);
  }
  Map map(folder, options());
  CHECK(::write(ends[1], "", 1) == 1);
  int status = 0;
  CHECK(::waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (int end : ends) CHECK(::close(end) == 0);
}

void test_errors_name_the_path() {
  auto text = thrown<std::system_error>([] { Map("/proc/none/such", options()); });
  CHECK(text.find("/proc/none/such") != std::string::npos);
}

}  // namespace

int main() {
  char name[] = "/tmp/headrace-kill-XXXXXX";
  CHECK(::mkdtemp(name));
  std::string folder = join_path(name, "map");
  test_kills(folder);
  test_lock(folder);
  test_errors_name_the_path();
  std::filesystem::remove_all(name);
}
