// Forks beside a durable map: counts children that hang, and folders that do not have every row
// afterwards. Arguments: a folder to be made, and how often.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <headrace/index/durable.hpp>
#include <memory>
#include <string>
#include <thread>

using Map = headrace::index::DurableMap<std::uint64_t>;

namespace {

std::unique_ptr<Map> map;  // static: destroyed by exit(), in a child too
int hangs = 0, damages = 0;

void commit(std::uint64_t first, std::uint64_t end) {
  Map::Batch batch;
  for (; first < end; ++first) {
    batch.clear();
    batch.put(first, first);
    map->commit(batch, headrace::index::Sync::yes);
  }
}

void await(pid_t child) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      ++hangs;
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

// A child that uses the map (or not), and exits while the parent has it open, after the parent has
// closed it, or before the parent commits more.
void fork_once(const std::string& folder, int number) {
  enum Exits { after_close, while_open, before_commits };
  const auto exits = static_cast<Exits>(number % 3);
  const bool uses = number % 2 == 0;
  std::filesystem::remove_all(folder);
  map = std::make_unique<Map>(folder);
  commit(0, 20);
  if (number % 5 == 0) map->checkpoint();  // its thread runs at the fork
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) std::exit(2);
  const auto child = ::fork();
  if (child == 0) {
    char unused = 0;
    ::close(ends[1]);
    if (::read(ends[0], &unused, 1) < 0) ::_exit(1);
    try {
      if (uses) commit(1000, 1010);
    } catch (const std::exception&) {
      // refused
    }
    std::exit(0);
  }
  ::close(ends[0]);
  commit(20, 40);
  if (exits == after_close) map->close();
  ::close(ends[1]);
  await(child);
  std::uint64_t rows = 40;
  if (exits == before_commits) commit(rows, rows + 5), rows += 5;
  map.reset();
  try {
    Map again(folder);
    std::uint64_t value = 0;
    bool whole = again.size() == rows;
    for (std::uint64_t code = 0; code < rows; ++code) whole = whole && again.get(code, value);
    damages += !whole;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ++damages;
  }
}

}  // namespace

int main(int, char** arguments) {
  const int count = std::atoi(arguments[2]);
  for (int number = 0; number < count; ++number) fork_once(arguments[1], number);
  std::printf("{\"hangs\": %d, \"damages\": %d}\n", hangs, damages);
}
