// Replays a workload on one ordered map, range by range, as standard input commands; prints one
// object of JSON a line. benchmarks/index runs one such process for each map and lets them take
// turns, so that every map has a heap of its own and meets the same state of the machine.
//
//   index_bench MAP WORKLOAD [--value-bytes 4|8] [--set FIELD=VALUE]... [--folder F --sync 0|1]
//
// MAP: standard, vector, absl, judy, headrace; map, headrace's with std::map's interface, by
// iterators; monitored, the map of other languages; append, headrace's multimap; durable and lmdb,
// which are kept in a folder. FIELD: of headrace's configuration. Commands:
//   build                    load the workload's codes
//   run BEGIN END            operations BEGIN to END, one after the other
//   chained BEGIN END        finds, each of which begins when the one before has ended
//   batches BEGIN END SIZE   operations of one kind in arrays of SIZE
//   iterate                  all entries, by iterators
//   check BEGIN END          find what the inserts of this range left, without a clock
//   latencies BEGIN END      with a clock around each operation
//   memory                   bytes since before the map was made: malloc's and resident
//   statistics               headrace's own, after verify()
//   counting BEGIN END SIZE  monitored: finds, by turns with counters and without
//   beside BEGIN END         shared: inserts beside a reader
//   writers BEGIN END        sharded: inserts by one thread, then by two
//   open                     close a folder's map, open it, and look up a code
#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/bench/kept.hpp"
#include "index/bench/meter.hpp"
#include "index/bench/ours.hpp"
#include "index/bench/replay.hpp"
#include "index/bench/rivals.hpp"
#include "index/bench/workload.hpp"

#if __has_include("index/maps/mapped_value.hpp")
#include "index/maps/map.hpp"
#define HEADRACE_BENCH_ITERATORS
#endif

#if __has_include("index/maps/multimap.hpp")
#include "index/bench/append.hpp"
#define HEADRACE_BENCH_APPEND
#endif

#if __has_include("index/maps/sharded.hpp")
#include "index/bench/threads.hpp"
#define HEADRACE_BENCH_THREADS
#endif

using namespace headrace::index::bench;

namespace {

struct Options {
  std::string map;
  std::string workload;
  std::size_t value_bytes = 8;
  std::vector<std::string> settings;
  std::string folder;
  bool sync = true;
};

Options parse(int count, char** arguments) {
  if (count < 3) throw std::invalid_argument("usage: index_bench MAP WORKLOAD [OPTION VALUE]...");
  Options options{.map = arguments[1], .workload = arguments[2], .settings = {}, .folder = {}};
  for (int i = 3; i + 1 < count; i += 2) {
    std::string name = arguments[i];
    if (name == "--value-bytes") {
      options.value_bytes = std::stoul(arguments[i + 1]);
    } else if (name == "--set") {
      options.settings.emplace_back(arguments[i + 1]);
    } else if (name == "--folder") {
      options.folder = arguments[i + 1];
    } else if (name == "--sync") {
      options.sync = std::string(arguments[i + 1]) != "0";
    } else {
      throw std::invalid_argument("no option: " + name);
    }
  }
  return options;
}

struct Memory {
  std::uint64_t allocated = allocated_bytes();
  std::uint64_t resident = resident_bytes();
};

template <class Map>
void print_memory(const Map& map, const Memory& before) {
  Memory now;
  Line("memory")
      .add("size", map.size())
      .add("allocated", now.allocated - before.allocated)
      .add("resident", now.resident - before.resident)
      .print();
}

template <class Map>
void build(Map& map, const Workload& workload) {
  Stopwatch watch;
  map.build(workload.loaded());
  Line("build")
      .add("operations", workload.loaded().size())
      .add("ns", watch.elapsed())
      .add("cpu_ns", watch.processor())
      .add("wrong", std::uint64_t{map.size() != workload.loaded().size()})
      .print();
}

template <class Map>
void iterate(const Map& map) {
  Stopwatch watch;
  const auto checksum = map.iterate();
  Line("iterate")
      .add("operations", map.size())
      .add("ns", watch.elapsed())
      .add("cpu_ns", watch.processor())
      .add("wrong", std::uint64_t{0})
      .add("checksum", checksum)
      .print();
}

// Time from a closed folder to the first answer, and until lookups have their full speed.
template <class Map>
void open(Map& map, const Workload& workload) {
  map.close();
  Stopwatch watch;
  map.reopen();
  typename Map::Value value{};
  auto code = workload.loaded()[workload.loaded().size() / 3];
  auto found = map.find(code, value) && value == value_of<typename Map::Value>(code);
  auto first = watch.elapsed();
  map.wait();
  Line("open")
      .add("operations", map.size())
      .add("ns", first)
      .add("whole_ns", watch.elapsed())
      .add("wrong", std::uint64_t{!found})
      .print();
}

template <class Map>
void execute(Map& map, const Workload& workload, const Memory& before, const std::string& command) {
  Replay<Map> replay(map, workload);
  std::istringstream words(command);
  std::string verb;
  Range range{0, 0};
  std::size_t size = 0;
  words >> verb >> range.begin >> range.end >> size;
  if (range.begin > range.end || range.end > workload.codes().size()) {
    throw std::invalid_argument("no such operations: " + command);
  }
  if (verb == "build") return build(map, workload);
  if (verb == "run") return replay.run(range);
  if (verb == "chained") return replay.chained(range);
  if (verb == "latencies") return replay.latencies(range);
  if (verb == "check") return replay.check(range);
  if (verb == "memory") return print_memory(map, before);
  if constexpr (requires { map.iterate(); }) {
    if (verb == "iterate") return iterate(map);
  }
  if constexpr (requires { map.describe(); }) {
    if (verb == "statistics") return map.describe();
    if (verb == "batches" && size > 0) return replay.batches(range, size);
  }
  if constexpr (requires { map.read_beside_writer(workload, range); }) {
    if (verb == "beside") return map.read_beside_writer(workload, range);
  }
  if constexpr (requires { map.count_in_turns(workload.codes(), size, size); }) {
    constexpr std::size_t kTurn = 8'192;  // a third of a millisecond, and more
    const auto codes = workload.codes().subspan(range.begin, range.end - range.begin);
    if (verb == "counting" && size > 0) {
      return map.count_in_turns(codes, std::max(kTurn, size), size);
    }
  }
  if constexpr (requires { map.write_by_two(workload, range); }) {
    if (verb == "writers") return map.write_by_two(workload, range);
  }
  if constexpr (requires { map.reopen(); }) {
    if (verb == "open") return open(map, workload);
  }
  throw std::invalid_argument("no command of this map: " + command);
}

template <class Map, class... Arguments>
void serve(const Workload& workload, const Arguments&... arguments) {
  Memory before;
  auto map = std::make_unique<Map>(arguments...);
  for (std::string command; std::getline(std::cin, command);) {
    execute(*map, workload, before, command);
  }
}

template <class Value>
void serve_map(const Options& options, const Workload& workload) {
  if (options.map == "standard") return serve<StandardMap<Value>>(workload);
  if (options.map == "vector") return serve<SortedVector<Value>>(workload);
#if defined(HEADRACE_BENCH_ABSL)
  if (options.map == "absl") return serve<AbslMap<Value>>(workload);
#endif
#if defined(HEADRACE_BENCH_JUDY)
  if (options.map == "judy") return serve<Judy<Value>>(workload);
#endif
  headrace::index::Configuration configuration;
  for (const auto& setting : options.settings) set_field(configuration, setting);
  if (options.map == "headrace") return serve<Ours<Value>>(workload, configuration);
#if defined(HEADRACE_BENCH_ITERATORS)
  if (options.map == "map") {
    return serve<Tree<headrace::index::Map<std::uint64_t, Value>>>(workload, configuration);
  }
#endif
  if (options.map == "monitored") return serve<Monitored<Value>>(workload, configuration);
#if defined(HEADRACE_BENCH_THREADS)
  if (options.map == "shared") return serve<SharedOurs<Value>>(workload, configuration);
  if (options.map == "sharded") return serve<Sharded<Value>>(workload, configuration);
#endif
#if defined(HEADRACE_BENCH_APPEND)
  if (options.map == "append") return serve<Append<Value>>(workload);
#endif
#if defined(HEADRACE_BENCH_DURABLE)
  if (options.map == "durable") {
    return serve<DurableOurs<Value>>(workload, options.folder, options.sync);
  }
#endif
#if defined(HEADRACE_BENCH_LMDB)
  if (options.map == "lmdb") return serve<Lmdb<Value>>(workload, options.folder, options.sync);
#endif
  throw std::invalid_argument("not in this build: " + options.map);
}

}  // namespace

int main(int count, char** arguments) try {
  auto options = parse(count, arguments);
  Workload workload(options.workload);
  if (options.value_bytes == 8) serve_map<std::uint64_t>(options, workload);
  if (options.value_bytes == 4) serve_map<std::uint32_t>(options, workload);
} catch (const std::exception& error) {
  std::cerr << "index_bench: " << error.what() << '\n';
  return 1;
}
