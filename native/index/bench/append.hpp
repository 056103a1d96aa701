// headrace's multimap behind the calls of bench/rivals.hpp: insertions append without a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "index/bench/workload.hpp"
#include "index/maps/multimap.hpp"

namespace headrace::index::bench {

template <class ValueType>
class Append {
 public:
  using Value = ValueType;

  void build(std::span<const std::uint64_t> ascending) {
    std::vector<Value> values(ascending.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of<Value>(ascending[i]);
    map_.build(ascending.data(), values.data(), ascending.size());
  }
  bool find(std::uint64_t code, Value& out) const {
    std::size_t count = 0;
    map_.for_each(code, [&](const Value& value) {
      out = value;
      ++count;
    });
    return count == 1;  // the workload's codes are unique
  }
  bool insert(std::uint64_t code, Value value) {
    map_.append(code, value);
    return true;
  }
  bool erase(std::uint64_t) { throw std::logic_error("erases of the multimap are not measured"); }
  std::size_t scan(std::uint64_t, std::size_t, std::uint64_t*, Value*) const {
    throw std::logic_error("scans of the multimap are not measured");
  }
  std::size_t size() const { return map_.size(); }

 private:
  Multimap<std::uint64_t, Value> map_;
};

}  // namespace headrace::index::bench
