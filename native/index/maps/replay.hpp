// Runs a trace on maps and times it: of trials, and of `headrace index run`. The value of each code
// is made of the code, so that whatever is found can be checked.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "index/maps/code_map.hpp"
#include "index/observe/activity.hpp"

namespace headrace::index {

struct TraceView {
  std::span<const std::uint64_t> loaded;     // in the map before the first operation
  std::span<const std::uint8_t> operations;  // numbers of `Operation`
  std::span<const std::uint64_t> codes;      // one for each operation
};

struct ReplayOptions {
  // 1: operations one by one. Else windows of so many, whose finds, inserts, erases and scans run
  // as one batch each, in this order.
  std::size_t batch = 1;
  // Processor time of a map's operations, their mean of several, after which no turn begins; 0:
  // none does.
  double most_seconds = std::numeric_limits<double>::infinity();
  int threads = 1;  // of loading
};

struct Replayed {
  double load_seconds = 0;       // elapsed
  double seconds = 0;            // of processor time, for the operations
  std::uint64_t operations = 0;  // that were run
  std::uint64_t found = 0;       // keys, by finds
  std::uint64_t inserted = 0;    // new keys
  std::uint64_t erased = 0;
  std::uint64_t scanned = 0;  // keys that scans returned
  std::uint64_t checked = 0;  // keys whose value, and after scans order, was checked
  std::uint64_t wrong = 0;    // of them
  Statistics statistics;      // at the end
};

template <class Value>
Value replayed_value(std::uint64_t code) {
  if constexpr (std::is_empty_v<Value>) {
    return Value{};
  } else {
    return static_cast<Value>(code * 0x9E3779B97F4A7C15 >> (64 - 8 * sizeof(Value)));
  }
}

namespace detail {

template <class Value>
class Replay {
 public:
  Replay(CodeMap<Value>& map, Replayed& result) : map_(map), result_(result) {}

  // Runs operations from `first` to below `end`: one after another, or by windows of `batch`.
  void run(const TraceView& trace, std::size_t first, std::size_t end, std::size_t batch) {
    if (batch == 1) {
      for (auto i = first; i < end; ++i) {
        run_one(static_cast<Operation>(trace.operations[i]), trace.codes[i]);
      }
      return;
    }
    for (auto i = first; i < end; i += batch) {
      run_window(trace.operations.data() + i, trace.codes.data() + i, std::min(batch, end - i));
    }
  }

 private:
  void run_one(Operation operation, std::uint64_t code) {
    switch (operation) {
      case Operation::find: {
        Value value{};
        if (!map_.get(code, value)) return;
        ++result_.found;
        return check(code, value);
      }
      case Operation::insert:
        result_.inserted += map_.insert_or_assign(code, replayed_value<Value>(code));
        return;
      case Operation::erase:
        result_.erased += map_.erase(code);
        return;
      case Operation::scan: {
        const auto count = map_.scan(code, kScanLength, scanned_.data(), scanned_values_.data());
        return check_scan(code, count);
      }
    }
  }

  void run_window(const std::uint8_t* operations, const std::uint64_t* codes, std::size_t count) {
    for (auto& some : by_kind_) some.clear();
    for (std::size_t i = 0; i < count; ++i) by_kind_[operations[i]].push_back(codes[i]);
    find_all(of(Operation::find));
    insert_all(of(Operation::insert));
    result_.erased += map_.erase(of(Operation::erase).data(), of(Operation::erase).size());
    for (auto code : of(Operation::scan)) run_one(Operation::scan, code);
  }

  std::vector<std::uint64_t>& of(Operation operation) {
    return by_kind_[static_cast<std::size_t>(operation)];
  }

  void find_all(const std::vector<std::uint64_t>& codes) {
    values_.resize(codes.size());
    found_.resize(codes.size());
    auto* found = reinterpret_cast<bool*>(found_.data());
    result_.found += map_.get(codes.data(), codes.size(), values_.data(), found);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      if (found[i]) check(codes[i], values_[i]);
    }
  }

  void insert_all(const std::vector<std::uint64_t>& codes) {
    values_.resize(codes.size());
    std::transform(codes.begin(), codes.end(), values_.begin(), replayed_value<Value>);
    result_.inserted += map_.insert_or_assign(codes.data(), values_.data(), codes.size());
  }

  void check([[maybe_unused]] std::uint64_t code, [[maybe_unused]] const Value& value) {
    ++result_.checked;
    if constexpr (!std::is_empty_v<Value>) result_.wrong += value != replayed_value<Value>(code);
  }

  void check_scan(std::uint64_t from, std::size_t count) {
    result_.scanned += count;
    for (std::size_t i = 0; i < count; ++i) {
      const bool ordered = i == 0 ? scanned_[0] >= from : scanned_[i] > scanned_[i - 1];
      result_.wrong += !ordered;
      check(scanned_[i], scanned_values_[i]);
    }
  }

  CodeMap<Value>& map_;
  Replayed& result_;
  std::array<std::uint64_t, kScanLength> scanned_;
  std::array<Value, kScanLength> scanned_values_;
  std::array<std::vector<std::uint64_t>, kOperations> by_kind_;
  std::vector<Value> values_;
  std::vector<unsigned char> found_;  // as bytes: std::vector<bool> has no array
};

// Of this thread: other work of the machine prolongs it less than the elapsed time.
inline double processor_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline void check_trace(const TraceView& trace) {
  if (trace.operations.size() != trace.codes.size()) {
    throw std::invalid_argument("operations are " + std::to_string(trace.operations.size()) +
                                ", keys " + std::to_string(trace.codes.size()) +
                                ": needs one key for each operation");
  }
  const auto wrong = std::find_if(trace.operations.begin(), trace.operations.end(),
                                  [](std::uint8_t one) { return one >= kOperations; });
  if (wrong == trace.operations.end()) return;
  throw std::invalid_argument("operation " + std::to_string(wrong - trace.operations.begin()) +
                              " is " + std::to_string(*wrong) +
                              ", needs 0 (find), 1 (insert), 2 (erase) or 3 (scan)");
}

}  // namespace detail

// Runs the operations of a trace on maps that have been loaded with values of `replayed_value`.
// They take turns of `kTurn` operations: a machine whose speed changes within milliseconds, as
// where its caches are shared, slows all alike.
template <class Value>
void replay_operations(std::vector<CodeMap<Value>>& maps, const TraceView& trace,
                       const ReplayOptions& options, std::vector<Replayed>& results) {
  constexpr std::size_t kTurn = 8192;
  std::vector<detail::Replay<Value>> replays;
  for (std::size_t i = 0; i < maps.size(); ++i) replays.emplace_back(maps[i], results[i]);
  const auto batch = std::max<std::size_t>(options.batch, 1);
  const auto turn = std::max(kTurn / batch, std::size_t{1}) * batch;
  const auto count = trace.codes.size();
  const auto most_seconds = options.most_seconds * static_cast<double>(maps.size());
  double seconds = 0;
  for (std::size_t first = 0, turns = 0; first < count && seconds < most_seconds; ++turns) {
    const auto end = std::min(first + turn, count);
    for (std::size_t i = 0; i < maps.size(); ++i) {
      const auto place = (turns + i) % maps.size();
      const auto began = detail::processor_seconds();
      replays[place].run(trace, first, end, batch);
      const auto spent = detail::processor_seconds() - began;
      results[place].operations = end;
      results[place].seconds += spent;
      seconds += spent;
    }
    first = end;
  }
}

// Loads a map of each configuration, and runs a trace on them by turns. Throws
// std::invalid_argument if a configuration, an operation or the length of a column is wrong.
template <class Value>
std::vector<Replayed> replay(std::span<const Configuration> configurations, const TraceView& trace,
                             const ReplayOptions& options = {}) {
  using Clock = std::chrono::steady_clock;
  for (const auto& configuration : configurations) configuration.validate();
  detail::check_trace(trace);
  std::vector<Value> values(trace.loaded.size());
  std::transform(trace.loaded.begin(), trace.loaded.end(), values.begin(), replayed_value<Value>);
  std::vector<Replayed> results(configurations.size());
  std::vector<CodeMap<Value>> maps;
  maps.reserve(configurations.size());
  for (std::size_t i = 0; i < configurations.size(); ++i) {
    maps.emplace_back(configurations[i]);
    const auto began = Clock::now();
    maps.back().build(trace.loaded.data(), values.data(), values.size(), options.threads);
    results[i].load_seconds = std::chrono::duration<double>(Clock::now() - began).count();
  }
  replay_operations(maps, trace, options, results);
  for (std::size_t i = 0; i < maps.size(); ++i) results[i].statistics = maps[i].statistics();
  return results;
}

// As `replay`, for values of 0, 4 or 8 bytes.
inline std::vector<Replayed> replay_dynamic(std::size_t value_bytes,
                                            std::span<const Configuration> configurations,
                                            const TraceView& trace,
                                            const ReplayOptions& options = {}) {
  switch (value_bytes) {
    case 0:
      return replay<Nothing>(configurations, trace, options);
    case 4:
      return replay<std::uint32_t>(configurations, trace, options);
    case 8:
      return replay<std::uint64_t>(configurations, trace, options);
    default:
      throw std::invalid_argument("values have " + std::to_string(value_bytes) +
                                  " bytes, needs 0, 4 or 8");
  }
}

}  // namespace headrace::index
