// Time of a collective between processes of this machine; built by name, run manually:
// executor_bench [ranks] [bytes] [repeats] [direct|ring|allgather|reduce_scatter]
//                [memory|tcp|tls|region] [KiB of a ring]
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "executor/executor.hpp"
#include "executor/testing.hpp"
#include "transport/shm/region.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

constexpr std::size_t kRingKib = 512;

// Direct exchange: every rank sends its own block to all others (allgather) or each other rank's
// block to it (reduce-scatter); a direct allreduce does one after the other.
std::vector<Transfer> direct(int ranks, bool scatters, bool gathers) {
  std::vector<Transfer> transfers;
  for (int k = 1; scatters && k < ranks; ++k) {
    for (int r = 0; r < ranks; ++r) {
      transfers.push_back({r, (r + k) % ranks, (r + k) % ranks, true});
    }
  }
  for (int k = 1; gathers && k < ranks; ++k) {
    for (int r = 0; r < ranks; ++r) transfers.push_back({r, (r + k) % ranks, r, false});
  }
  return transfers;
}

std::vector<Transfer> transfers_of(const std::string& kind, int ranks) {
  if (kind == "ring") return ring_allreduce(ranks);
  return direct(ranks, kind != "allgather", kind != "reduce_scatter");
}

double cpu_s() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto seconds = [](timeval t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Sleeps until a time agreed by all ranks.
void start_together(Executor& executor, const std::shared_ptr<const Program>& ring) {
  auto soon = (Clock::now() + std::chrono::milliseconds(1)).time_since_epoch().count();
  std::vector<std::int64_t> moment(static_cast<std::size_t>(ring->ranks()), soon);
  auto call = call_on(moment, ring, DataType::kInt64);
  call.op = Operator::kMax;
  executor.run(call);
  std::this_thread::sleep_until(Clock::time_point(Clock::duration(moment[0])));
}

void run_rank(int rank, int ranks, std::vector<Link> links, std::size_t bytes, int repeats,
              const std::string& kind, bool region) {
  Executor::Options options;
  options.rank = rank;
  options.ranks = ranks;
  Executor executor(options);
  executor.connect(std::move(links));
  auto program = program_of(rank, ranks, ranks, transfers_of(kind, ranks));
  auto ring = program_of(rank, ranks, ranks, ring_allreduce(ranks));
  std::vector<float> own_memory(region ? 0 : bytes / sizeof(float));
  auto* begin = region ? reinterpret_cast<float*>(shm::allocate(bytes)) : own_memory.data();
  std::span<float> data(begin, bytes / sizeof(float));
  std::vector<double> times_us;
  double cpu = 0;
  for (int i = -3; i < repeats; ++i) {
    std::fill(data.begin(), data.end(), 1.0f);
    start_together(executor, ring);
    auto used = cpu_s();
    auto begin = Clock::now();
    executor.run(call_on(data, program, DataType::kFloat32));
    auto end = Clock::now();
    if (i >= 0) {
      times_us.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
      cpu += cpu_s() - used;
    }
    start_together(executor, ring);  // a finished rank must not take another's processor
    auto block = data.size() / static_cast<std::size_t>(ranks);
    auto own = data.subspan(block * static_cast<std::size_t>(rank), block);
    auto wanted = kind == "allgather" ? 1.0f : static_cast<float>(ranks);
    auto results = kind == "reduce_scatter" ? own : data;
    CHECK(std::all_of(results.begin(), results.end(), [&](float v) { return v == wanted; }));
  }
  std::sort(times_us.begin(), times_us.end());
  std::printf("rank %d: median %.1f us, best %.1f us, cpu %.1f us a call\n", rank,
              times_us[times_us.size() / 2], times_us[0], 1e6 * cpu / repeats);
}

}  // namespace

int main(int count, char** arguments) {
  int ranks = count > 1 ? std::stoi(arguments[1]) : 4;
  std::size_t bytes = count > 2 ? std::stoul(arguments[2]) : 1 << 20;
  int repeats = count > 3 ? std::stoi(arguments[3]) : 100;
  std::string kind = count > 4 ? arguments[4] : "direct";
  std::string way = count > 5 ? arguments[5] : "memory";
  auto ring_bytes = (count > 6 ? std::stoul(arguments[6]) : kRingKib) << 10;
  auto via = way == "tls" ? Via::kTls : way == "tcp" ? Via::kTcp : Via::kMemory;
  auto links = links_of(ranks, 1, via, ring_bytes);
  for (int r = 0; r < ranks; ++r) {
    if (::fork() != 0) continue;
    auto mine = std::move(links[static_cast<std::size_t>(r)]);
    links.clear();
    run_rank(r, ranks, std::move(mine), bytes, repeats, kind, way == "region");
    std::exit(0);
  }
  links.clear();
  for (int r = 0; r < ranks; ++r) ::wait(nullptr);
}
