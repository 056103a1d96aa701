// Two threads on one map: a reader beside the writer of a shared map, and writers of shards; and on
// maps of their own, which is as fast as the two cores and their memory allow.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "index/bench/meter.hpp"
#include "index/bench/ours.hpp"
#include "index/bench/replay.hpp"
#include "index/bench/workload.hpp"
#include "index/maps/sharded.hpp"
#include "index/memory/concurrent.hpp"

namespace headrace::index::bench {

// Looks up loaded codes, in an order without locality, until `stopped` or `most` are done.
struct Reader {
  std::uint64_t lookups = 0;
  std::uint64_t wrong = 0;
  std::uint64_t elapsed = 0;

  template <class Map>
  void run(const Map& map, std::span<const std::uint64_t> codes, const std::atomic<bool>& stopped,
           std::uint64_t most) {
    using Value = typename Map::Value;
    constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15;
    Stopwatch watch;
    for (std::uint64_t at = 1; lookups < most && !stopped.load(std::memory_order_relaxed);) {
      for (int i = 0; i < 256; ++i, ++lookups) {
        at += kStep;
        auto place = (at >> 32) * codes.size() >> 32;
        Value value{};
        wrong += !(map.find(codes[place], value) && value == value_of<Value>(codes[place]));
      }
    }
    elapsed = watch.elapsed();
  }

  double per_s() const { return 1e9 * static_cast<double>(lookups) / static_cast<double>(elapsed); }
};

// Inserts a range; returns how many of its codes were there already.
template <class Map>
std::uint64_t write(Map& map, const Workload& workload, Range range) {
  std::uint64_t wrong = 0;
  for (auto i = range.begin; i < range.end; ++i) {
    auto code = workload.codes()[i];
    wrong += !map.insert(code, value_of<typename Map::Value>(code));
  }
  return wrong;
}

inline double rate(std::size_t operations, std::uint64_t nanoseconds) {
  return 1e9 * static_cast<double>(operations) / static_cast<double>(nanoseconds);
}

template <class ValueType>
class SharedOurs : public Ours<ValueType, Shared> {
 public:
  using Value = ValueType;
  using Map = Ours<Value, Shared>;

  explicit SharedOurs(const Configuration& configuration)
      : Map(configuration), other_(configuration) {}

  void build(std::span<const std::uint64_t> ascending) {
    Map::build(ascending);
    other_.build(ascending);
  }
  void read_beside_writer(const Workload& workload, Range range);

 private:
  struct Beside {
    Reader reader;
    double writer_per_s;
    std::uint64_t wrong;
  };
  // Inserts the range into a map in this thread while another reads this one.
  Beside beside(Map& written, const Workload& workload, Range range) const;

  Map other_;  // that the reader does not read
};

// Two writers and kShards shards: with more shards than writers, few wait for each other.
template <class ValueType>
class Sharded : public Calls<ValueType, ShardedMap<ValueType>> {
 public:
  using Value = ValueType;
  using Map = Calls<Value, ShardedMap<Value>>;
  static constexpr std::size_t kShards = 16;

  explicit Sharded(const Configuration& configuration)
      : Map(kShards, configuration),
        left_(kShards, configuration),
        right_(kShards, configuration) {}

  void build(std::span<const std::uint64_t> ascending) {
    Map::build(ascending);
    left_.build(ascending);
    right_.build(ascending);
  }
  void write_by_two(const Workload& workload, Range range);

 private:
  Map left_;  // that one thread each writes
  Map right_;
};

template <class Value>
auto SharedOurs<Value>::beside(Map& written, const Workload& workload, Range range) const
    -> Beside {
  std::atomic<bool> stopped{false};
  Reader reader;
  Stopwatch watch;
  std::thread other([&] { reader.run(*this, workload.loaded(), stopped, ~std::uint64_t{0}); });
  const auto wrong = write(written, workload, range);
  const auto elapsed = watch.elapsed();
  stopped = true;
  other.join();
  return {reader, rate(range.end - range.begin, elapsed), wrong + reader.wrong};
}

// Inserts the range beside a reader, of a map of its own first; the reader alone, before and after.
template <class Value>
void SharedOurs<Value>::read_beside_writer(const Workload& workload, Range range) {
  constexpr std::uint64_t kAlone = 2'000'000;
  const std::atomic<bool> stopped{false};
  const auto codes = workload.loaded();
  Reader before;
  Reader after;
  const auto apart = beside(other_, workload, range);
  before.run(*this, codes, stopped, kAlone);
  const auto found = beside(*this, workload, range);
  after.run(*this, codes, stopped, kAlone);
  Line("beside")
      .add("reader_alone_per_s", (before.per_s() + after.per_s()) / 2)
      .add("reader_beside_per_s", found.reader.per_s())
      .add("writer_per_s", found.writer_per_s)
      .add("reader_of_another_map_per_s", apart.reader.per_s())
      .add("wrong", found.wrong + apart.wrong + before.wrong + after.wrong)
      .print();
}

// Inserts half of the range in this thread, then the rest in this and another: into this map, and
// again into one map each.
template <class Value>
void Sharded<Value>::write_by_two(const Workload& workload, Range range) {
  const auto count = range.end - range.begin;
  const Range first{range.begin, range.begin + count / 2};
  const Range second{first.end, first.end + count / 4};
  const Range third{second.end, range.end};
  Stopwatch alone;
  auto wrong = write(*this, workload, first);
  const auto one = alone.elapsed();
  const auto two = [&](auto& mine, auto& others) {
    std::uint64_t others_wrong = 0;
    Stopwatch together;
    std::thread other([&] { others_wrong = write(others, workload, second); });
    wrong += write(mine, workload, third);
    other.join();
    wrong += others_wrong;
    return rate(third.end - second.begin, together.elapsed());
  };
  Line("writers")
      .add("one_per_s", rate(first.end - first.begin, one))
      .add("two_per_s", two(*this, *this))
      .add("two_of_a_map_each_per_s", two(left_, right_))
      .add("wrong", wrong)
      .print();
}

}  // namespace headrace::index::bench
