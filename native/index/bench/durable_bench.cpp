// Durable maps beside LMDB: commits of 1,000 changes with and without a sync of the file each, by
// turns; opening with files in the page cache and not; and what opening, recovery and checkpoints
// are made of. Arguments: rows that are loaded (10,000,000), commits (400), a folder on the disk
// that is measured (/tmp).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/bench/kept.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using Map = DurableMap<std::uint64_t>;
constexpr std::size_t kLookups = 1000;

std::size_t rows = 10'000'000;
std::size_t commits = 400;

double seconds_of(const std::function<void()>& action) {
  auto begun = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<std::uint64_t> ascending_codes() {
  std::mt19937_64 random(18);  // NOLINT: the same sequence in every run
  std::vector<std::uint64_t> codes(rows);
  for (auto& code : codes) code = random();
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  return codes;
}

// Both maps commit the same random changes, a tenth of the commits at a time.
template <class Theirs>
void compare_commits(const std::string& folder, const std::vector<std::uint64_t>& codes,
                     bool sync) {
  auto ours_at = join_path(folder, "ours"), theirs_at = join_path(folder, "theirs");
  std::filesystem::create_directories(ours_at);
  std::filesystem::create_directories(theirs_at);
  bench::DurableOurs<std::uint64_t> ours(ours_at, sync);
  Theirs theirs(theirs_at, sync);
  ours.build(codes);
  theirs.build(codes);
  std::vector<double> ratios;
  double ours_total = 0, theirs_total = 0;
  for (int part = 0; part < 10; ++part) {
    auto write = [part](auto& map) {
      std::mt19937_64 random(static_cast<std::uint64_t>(part));
      for (std::size_t i = 0; i < commits / 10 * bench::kGroup; ++i) map.insert(random(), i);
    };
    auto our_time = seconds_of([&] { write(ours); });
    auto their_time = seconds_of([&] { write(theirs); });
    ours_total += our_time;
    theirs_total += their_time;
    ratios.push_back(their_time / our_time);
  }
  CHECK(ours.size() == theirs.size());
  auto made = static_cast<double>(commits / 10 * 10);
  std::printf("commits of 1,000, %-8s headrace %8.0f/s  lmdb %8.0f/s  ratio %.2f\n",
              sync ? "synced" : "unsynced", made / ours_total, made / theirs_total, median(ratios));
  theirs.close();
  ours.close();
  std::filesystem::remove_all(ours_at);
  std::filesystem::remove_all(theirs_at);
}

// Drops the files of a folder from the page cache.
void drop_from_cache(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    auto fd = ::open(entry.path().c_str(), O_RDONLY);
    CHECK(fd >= 0 && ::fsync(fd) == 0 && ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    ::close(fd);
  }
}

void look_up(const Map& map, const std::vector<std::uint64_t>& codes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < kLookups; ++i) {
    auto code = codes[random() % codes.size()];
    std::uint64_t value = 0;
    CHECK(map.get(code, value) && value == ~code);
  }
}

void measure_opening(const std::string& folder, const std::vector<std::uint64_t>& codes,
                     bool cached) {
  std::vector<double> opening, lookups, tree;
  for (std::uint64_t round = 0; round < 7; ++round) {
    if (!cached) drop_from_cache(folder);
    std::optional<Map> map;
    opening.push_back(seconds_of([&] { map.emplace(folder); }));
    lookups.push_back(opening.back() + seconds_of([&] { look_up(*map, codes, round); }));
    tree.push_back(lookups.back() + seconds_of([&] { map->tree(); }));
    look_up(*map, codes, round + 100);
  }
  std::printf("open %zu rows, %-10s %7.2f ms; with 1,000 lookups %7.2f ms; whole tree %7.1f ms\n",
              codes.size(), cached ? "cached:" : "from disk:", 1e3 * median(opening),
              1e3 * median(lookups), 1e3 * median(tree));
}

void measure_verification(const std::string& folder) {
  auto path = Map(folder).folder().snapshot()->path();
  std::vector<double> times;
  double bytes = 0;
  for (int round = 0; round < 5; ++round) {
    Snapshot snapshot(system_files(), path, RowFormat{8});
    times.push_back(seconds_of([&] { snapshot.verify(); }));
    bytes = static_cast<double>(snapshot.file_bytes());
  }
  std::printf("verify all blocks          %7.1f ms (%.1f GB/s)\n", 1e3 * median(times),
              bytes / median(times) / 1e9);
}

// Log of `commits` groups after the snapshot: recovery, then a checkpoint of it.
void measure_recovery(const std::string& folder) {
  auto options = Map::Options();
  options.checkpoint_log_bytes = 0;
  {
    Map map(folder, options);
    std::mt19937_64 random(20);  // NOLINT: the same sequence in every run
    Map::Batch batch;
    for (std::size_t group = 0; group < commits; ++group) {
      for (std::size_t i = 0; i < bench::kGroup; ++i) batch.put(random(), i);
      map.commit(batch);
      batch.clear();
    }
  }
  std::optional<Map> map;
  auto recovery = seconds_of([&] { map.emplace(folder, options); });
  auto changes = static_cast<double>(commits * bench::kGroup);
  std::printf("replay %.0f changes      %7.1f ms (%.2f M/s)\n", changes, 1e3 * recovery,
              changes / recovery / 1e6);
  map->tree();
  auto begin = seconds_of([&] { map->checkpoint(); });
  auto whole = begin + seconds_of([&] { map->wait_for_checkpoint(); });
  std::printf("checkpoint                 %7.1f ms, of which changes wait for %.1f ms\n",
              1e3 * whole, 1e3 * begin);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) rows = std::strtoull(arguments[1], nullptr, 10);
  if (count > 2) commits = std::strtoull(arguments[2], nullptr, 10);
  auto folder = join_path(count > 3 ? arguments[3] : "/tmp", "headrace-durable-bench");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  auto codes = ascending_codes();
#if defined(HEADRACE_BENCH_LMDB)
  for (bool sync : {true, false}) {
    compare_commits<bench::Lmdb<std::uint64_t>>(folder, codes, sync);
  }
#endif
  auto at = join_path(folder, "map");
  {
    Map map(at);
    std::vector<std::uint64_t> values(codes.size());
    std::transform(codes.begin(), codes.end(), values.begin(), [](auto code) { return ~code; });
    auto build = seconds_of([&] { map.build(codes.data(), values.data(), codes.size()); });
    std::printf("build %zu rows        %7.1f ms\n", codes.size(), 1e3 * build);
  }
  for (bool cached : {true, false}) measure_opening(at, codes, cached);
  measure_verification(at);
  measure_recovery(at);
  std::filesystem::remove_all(folder);
}
