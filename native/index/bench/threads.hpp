// Two threads on one map: a reader beside the writer of a shared map, and writers of shards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "index/bench/meter.hpp"
#include "index/bench/ours.hpp"
#include "index/bench/replay.hpp"
#include "index/bench/workload.hpp"
#include "index/concurrent.hpp"
#include "index/sharded.hpp"

namespace headrace::index::bench {

template <class ValueType>
class SharedOurs : public Ours<ValueType, Shared> {
 public:
  using Ours<ValueType, Shared>::Ours;
  void read_beside_writer(const Workload& workload, Range range);
};

// Two writers and kShards shards: with more shards than writers, few wait for each other.
template <class ValueType>
class Sharded {
 public:
  using Value = ValueType;
  static constexpr std::size_t kShards = 16;

  explicit Sharded(const Configuration& configuration) : map_(kShards, configuration) {}

  void build(std::span<const std::uint64_t> ascending) {
    std::vector<Value> values(ascending.size());
    std::transform(ascending.begin(), ascending.end(), values.begin(), value_of<Value>);
    map_.build(ascending.data(), values.data(), ascending.size());
  }
  bool find(std::uint64_t code, Value& out) const { return map_.get(code, out); }
  bool insert(std::uint64_t code, Value value) { return map_.insert_or_assign(code, value); }
  bool erase(std::uint64_t code) { return map_.erase(code); }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    return map_.scan(from, most, codes, values);
  }
  std::size_t size() const { return map_.size(); }
  void write_by_two(const Workload& workload, Range range);

 private:
  ShardedMap<Value> map_;
};

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

// Inserts the range in this thread while another reads; the reader alone, before and after.
template <class Value>
void SharedOurs<Value>::read_beside_writer(const Workload& workload, Range range) {
  constexpr std::uint64_t kAlone = 2'000'000;
  auto codes = workload.loaded();
  std::atomic<bool> stopped{false};
  Reader before;
  Reader beside;
  Reader after;
  before.run(*this, codes, stopped, kAlone);
  Stopwatch watch;
  std::thread reader([&] { beside.run(*this, codes, stopped, ~std::uint64_t{0}); });
  auto wrong = write(*this, workload, range);
  auto elapsed = watch.elapsed();
  stopped = true;
  reader.join();
  stopped = false;
  after.run(*this, codes, stopped, kAlone);
  Line("beside")
      .add("reader_alone_per_s", (before.per_s() + after.per_s()) / 2)
      .add("reader_beside_per_s", beside.per_s())
      .add("writer_per_s", rate(range.end - range.begin, elapsed))
      .add("wrong", wrong + before.wrong + beside.wrong + after.wrong)
      .print();
}

// Inserts half of the range in this thread, then the rest in this and another.
template <class Value>
void Sharded<Value>::write_by_two(const Workload& workload, Range range) {
  auto count = range.end - range.begin;
  Range first{range.begin, range.begin + count / 2};
  Range second{first.end, first.end + count / 4};
  Range third{second.end, range.end};
  Stopwatch alone;
  auto wrong = write(*this, workload, first);
  auto one = alone.elapsed();
  std::uint64_t others = 0;
  Stopwatch together;
  std::thread other([&] { others = write(*this, workload, second); });
  wrong += write(*this, workload, third);
  other.join();
  auto two = together.elapsed();
  Line("writers")
      .add("one_per_s", rate(first.end - first.begin, one))
      .add("two_per_s", rate(third.end - second.begin, two))
      .add("wrong", wrong + others)
      .print();
}

}  // namespace headrace::index::bench
