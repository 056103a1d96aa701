// headrace's map behind the calls of bench/rivals.hpp, with a configuration of the command line.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "index/bench/meter.hpp"
#include "index/bench/workload.hpp"
#include "index/maps/code_map.hpp"
#include "index/maps/dynamic_map.hpp"
#include "index/observe/activity.hpp"

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

// Calls that all of headrace's maps have; `map_` is made of the arguments.
template <class ValueType, class Map>
class Calls {
 public:
  using Value = ValueType;

  template <class... Arguments>
  explicit Calls(const Arguments&... arguments) : map_(arguments...) {}

  void build(std::span<const std::uint64_t> ascending) {
    const auto values = values_of<Value>(ascending);
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

 protected:
  Map map_;
};

template <class ValueType, class Sharing = Exclusive>
class Ours : public Calls<ValueType, CodeMap<ValueType, Sharing>> {
  using Base = Calls<ValueType, CodeMap<ValueType, Sharing>>;

 protected:
  using Base::map_;

 public:
  using Value = ValueType;
  using Base::erase;
  using Base::find;
  using Base::insert;

  explicit Ours(const Configuration& configuration) : Base(configuration) {}

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
};

// Observes nothing.
struct Unobserved : Activity {
  struct Batch {
    Batch(Unobserved&, Operation, std::size_t) {}
    void done(std::uint64_t) {}
  };
  static bool passes(Operation) { return true; }
  void sample(Operation, const std::uint64_t*, std::size_t) {}
};

// The map of other languages, behind its lock, with the counters that adaptation reads and without
// them: both take turns on one map, so that memory and what else the machine does are the same.
template <class ValueType>
class Monitored : public Ours<ValueType> {
 public:
  using Value = ValueType;
  using Ours<Value>::Ours;

  // Finds the codes in batches of `size`, by turns of `turn` codes.
  void count_in_turns(std::span<const std::uint64_t> codes, std::size_t turn, std::size_t size) {
    std::array<std::uint64_t, 2> taken_ns{};
    std::uint64_t wrong = 0;
    for (std::size_t begin = 0; begin + 2 * turn <= codes.size(); begin += 2 * turn) {
      find_all<Unobserved>(codes.subspan(begin, turn), size, taken_ns[0], wrong);
      find_all<Activity>(codes.subspan(begin + turn, turn), size, taken_ns[1], wrong);
    }
    Line("counting")
        .add("plain_ns", taken_ns[0])
        .add("counting_ns", taken_ns[1])
        .add("wrong", wrong)
        .print();
  }

 private:
  template <class Observer>
  void find_all(std::span<const std::uint64_t> codes, std::size_t size, std::uint64_t& taken_ns,
                std::uint64_t& wrong) {
    using Map = detail::DynamicMapOf<Value, Observer>;
    auto made = std::make_unique<Map>(std::move(this->map_));
    DynamicMap& map = *made;
    std::vector<Value> values(size);
    const auto found = std::make_unique<bool[]>(size);
    const Value missing{};
    Stopwatch watch;
    for (std::size_t at = 0; at < codes.size(); at += size) {
      const auto count = std::min(size, codes.size() - at);
      map.find({codes.data() + at, count, KeyType::uint64}, values.data(), found.get(), &missing);
      for (std::size_t i = 0; i < count; ++i) {
        wrong += !found[i] || values[i] != value_of<Value>(codes[at + i]);
      }
    }
    taken_ns += watch.processor();
    this->map_ = std::move(*made).release();
  }
};

}  // namespace headrace::index::bench
