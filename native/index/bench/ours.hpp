// headrace's map behind the calls of bench/rivals.hpp, with a configuration of the command line.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/activity.hpp"
#include "index/bench/meter.hpp"
#include "index/bench/workload.hpp"
#include "index/code_map.hpp"

namespace headrace::index::bench {

// Sets a field of a configuration from "name=value", with the names of the Python class.
inline void set_field(Configuration& configuration, const std::string& setting) {
  auto split = setting.find('=');
  auto name = setting.substr(0, split);
  auto value = split == std::string::npos ? std::string() : setting.substr(split + 1);
  auto integer = static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
  auto number = std::strtod(value.c_str(), nullptr);
  if (name == "leaf") {
    auto* found = std::find(std::begin(kLeafNames), std::end(kLeafNames), value);
    if (found == std::end(kLeafNames)) throw std::invalid_argument("no type of leaf: " + value);
    configuration.leaf = static_cast<Leaf>(found - std::begin(kLeafNames));
  } else if (name == "fragment_keys") {
    configuration.fragment_keys = integer;
  } else if (name == "fragments") {
    configuration.fragments = integer;
  } else if (name == "initial_fragments") {
    configuration.initial_fragments = integer;
  } else if (name == "fingerprints") {
    configuration.fingerprints = integer != 0;
  } else if (name == "leaf_keys") {
    configuration.leaf_keys = integer;
  } else if (name == "fill") {
    configuration.fill = number;
  } else if (name == "max_search") {
    configuration.max_search = number;
  } else if (name == "max_shifts") {
    configuration.max_shifts = number;
  } else if (name == "insert_fraction") {
    configuration.insert_fraction = number;
  } else {
    throw std::invalid_argument("no field of a configuration: " + setting);
  }
}

template <class ValueType, class Sharing = Exclusive>
class Ours {
 public:
  using Value = ValueType;

  explicit Ours(const Configuration& configuration) : map_(configuration) {}

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

  // Batches: the count of codes that were found, new or erased.
  std::size_t find(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    return map_.get(codes, count, out, found);
  }
  std::size_t insert(const std::uint64_t* codes, const Value* values, std::size_t count) {
    return map_.insert_or_assign(codes, values, count);
  }
  std::size_t erase(const std::uint64_t* codes, std::size_t count) {
    return map_.erase(codes, count);
  }

  // Checks every invariant, and prints the tree's statistics.
  void describe() const {
    map_.verify();
    auto found = map_.statistics();
    Line line("statistics");
    line.add("size", found.size).add("bytes", found.bytes).add("inner_nodes", found.inner_nodes);
    for (std::size_t type = 0; type < kLeafTypes; ++type) {
      line.add(kLeafNames[type], found.leaves[type]);
    }
    line.add("depth", found.depth)
        .add("mean_depth", found.mean_depth)
        .add("changes", found.changes)
        .add("largest_change_keys", found.largest_change_keys)
        .print();
  }

 private:
  CodeMap<Value, Sharing> map_;
};

// The same behind a lock, as the map that other languages use; with or without the counters that
// adaptation reads.
template <class ValueType, bool kCounting>
class Locked {
 public:
  using Value = ValueType;

  explicit Locked(const Configuration& configuration) : map_(configuration) {}

  void build(std::span<const std::uint64_t> ascending) { map_.build(ascending); }
  bool find(std::uint64_t code, Value& out) {
    return counted(Operation::find, &code, 1, [&] { return map_.find(code, out); });
  }
  bool insert(std::uint64_t code, Value value) {
    return counted(Operation::insert, &code, 1, [&] { return map_.insert(code, value); });
  }
  bool erase(std::uint64_t code) {
    return counted(Operation::erase, &code, 1, [&] { return map_.erase(code); });
  }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes, Value* values) {
    return counted(Operation::scan, &from, 1, [&] { return map_.scan(from, most, codes, values); });
  }
  std::size_t size() const { return map_.size(); }

  std::size_t find(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) {
    return counted(Operation::find, codes, count,
                   [&] { return map_.find(codes, count, out, found); });
  }
  std::size_t insert(const std::uint64_t* codes, const Value* values, std::size_t count) {
    return counted(Operation::insert, codes, count,
                   [&] { return map_.insert(codes, values, count); });
  }
  std::size_t erase(const std::uint64_t* codes, std::size_t count) {
    return counted(Operation::erase, codes, count, [&] { return map_.erase(codes, count); });
  }
  void describe() const { map_.describe(); }

 private:
  template <class Action>
  auto counted(Operation operation, const std::uint64_t* codes, std::size_t count,
               const Action& action) {
    std::lock_guard lock(mutex_);
    if constexpr (kCounting) {
      if (count > 1 || !activity_.passes(operation)) {
        return watched(operation, codes, count, action);
      }
    }
    return action();
  }

  template <class Action>
  [[gnu::noinline]] auto watched(Operation operation, const std::uint64_t* codes, std::size_t count,
                                 const Action& action) {
    Activity::Batch batch(activity_, operation, count);
    activity_.sample(operation, codes, count);
    auto effective = action();
    batch.done(effective);
    return effective;
  }

  std::mutex mutex_;
  Ours<Value> map_;
  Activity activity_;
};

}  // namespace headrace::index::bench
