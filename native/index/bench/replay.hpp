// Replays ranges of a workload's operations on one map, every answer checked.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/bench/meter.hpp"
#include "index/bench/workload.hpp"

namespace headrace::index::bench {

struct Range {
  std::size_t begin;
  std::size_t end;
};

struct Answers {
  std::uint64_t wrong = 0;
  std::uint64_t checksum = 0;  // of the codes that scans returned; equal for all maps
};

// A map of bench/rivals.hpp or bench/ours.hpp with what has been replayed on it.
template <class Map>
class Replay {
 public:
  using Value = typename Map::Value;

  Replay(Map& map, const Workload& workload) : map_(map), workload_(workload) {}

  // One operation after the other, without a clock inside.
  void run(Range range) {
    Answers answers;
    auto codes = workload_.codes();
    auto operations = workload_.operations();
    Stopwatch watch;
    for (auto i = range.begin; i < range.end; ++i) apply(operations[i], codes[i], answers);
    report("run", range, watch.elapsed(), watch.processor(), answers);
  }

  // Finds the codes that the range inserted: workloads erase none of these.
  void check(Range range) {
    Answers answers;
    Stopwatch watch;
    for (auto i = range.begin; i < range.end; ++i) {
      if (workload_.operations()[i] == kInsert) apply(kFind, workload_.codes()[i], answers);
    }
    report("check", range, watch.elapsed(), watch.processor(), answers);
  }

  // Finds of which each begins when the one before has ended.
  void chained(Range range) {
    Answers answers;
    auto codes = workload_.codes();
    std::uint64_t carried = 0;  // always 0, which the compiler cannot know
    Stopwatch watch;
    for (auto i = range.begin; i < range.end; ++i) {
      Value value{};
      auto code = codes[i] ^ carried;
      answers.wrong += !map_.find(code, value);
      carried = static_cast<std::uint64_t>(value) ^ value_of<Value>(codes[i]);
      answers.wrong += carried != 0;
    }
    report("chained", range, watch.elapsed(), watch.processor(), answers);
  }

  // Operations of one kind (that of the first), by arrays of `size` codes.
  void batches(Range range, std::size_t size) {
    std::vector<Value> values(size);
    auto found = std::make_unique<bool[]>(size);
    Answers answers;
    auto operation = workload_.operations()[range.begin];
    Stopwatch watch;
    for (auto i = range.begin; i < range.end; i += size) {
      auto count = std::min(size, range.end - i);
      batch(operation, workload_.codes().data() + i, count, values.data(), found.get(), answers);
    }
    report("batches", range, watch.elapsed(), watch.processor(), answers);
  }

  // One operation after the other, each with a clock around it.
  void latencies(Range range) {
    Answers answers;
    std::vector<std::uint32_t> taken(range.end - range.begin);
    auto before = nanoseconds(CLOCK_MONOTONIC);
    auto begun = before;
    for (auto i = range.begin; i < range.end; ++i) {
      apply(workload_.operations()[i], workload_.codes()[i], answers);
      auto now = nanoseconds(CLOCK_MONOTONIC);
      taken[i - range.begin] =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(now - before, 0xFFFFFFFF));
      before = now;
    }
    std::sort(taken.begin(), taken.end());
    auto at = [&](double share) {
      return std::uint64_t{
          taken[static_cast<std::size_t>(share * static_cast<double>(taken.size() - 1))]};
    };
    Line("latencies")
        .add("operations", taken.size())
        .add("ns", before - begun)
        .add("p50_ns", at(0.5))
        .add("p99_ns", at(0.99))
        .add("p999_ns", at(0.999))
        .add("p9999_ns", at(0.9999))
        .add("most_ns", at(1.0))
        .add("wrong", answers.wrong)
        .print();
  }

 private:
  void apply(std::uint8_t operation, std::uint64_t code, Answers& answers) {
    Value value{};
    switch (operation) {
      case kFind:
        answers.wrong += !(map_.find(code, value) && value == value_of<Value>(code));
        break;
      case kInsert:
        answers.wrong += !map_.insert(code, value_of<Value>(code));
        break;
      case kErase:
        answers.wrong += !map_.erase(code);
        break;
      case kScan:
        scan(code, answers);
        break;
      default:
        answers.wrong += map_.find(code, value);
    }
  }

  void scan(std::uint64_t code, Answers& answers) {
    std::array<std::uint64_t, kScanLength> codes;
    std::array<Value, kScanLength> values;
    auto count = map_.scan(code, kScanLength, codes.data(), values.data());
    auto wrong = count == 0 || codes[0] != code;  // scans begin at present codes
    for (std::size_t i = 0; i < count; ++i) {
      wrong |= values[i] != value_of<Value>(codes[i]) || (i > 0 && codes[i] <= codes[i - 1]);
      answers.checksum += codes[i];
    }
    answers.wrong += wrong;
  }

  void batch(std::uint8_t operation, const std::uint64_t* codes, std::size_t count, Value* values,
             bool* found, Answers& answers) {
    if (operation == kErase) {
      answers.wrong += count - map_.erase(codes, count);
    } else if (operation == kInsert) {
      std::transform(codes, codes + count, values, value_of<Value>);
      answers.wrong += count - map_.insert(codes, values, count);
    } else {
      map_.find(codes, count, values, found);
      for (std::size_t i = 0; i < count; ++i) {
        answers.wrong += !found[i] || values[i] != value_of<Value>(codes[i]);
      }
    }
  }

  void report(const char* kind, Range range, std::uint64_t elapsed, std::uint64_t processor,
              const Answers& answers) const {
    Line(kind)
        .add("operations", range.end - range.begin)
        .add("ns", elapsed)
        .add("cpu_ns", processor)
        .add("wrong", answers.wrong)
        .add("checksum", answers.checksum)
        .print();
  }

  Map& map_;
  const Workload& workload_;
};

}  // namespace headrace::index::bench
