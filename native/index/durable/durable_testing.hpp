// For tests of durable maps: a std::map with the members of CodeMap that they use, and models of
// what a map has after each group of changes.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "index/durable/durable.hpp"

namespace headrace::index::testing {

// What tests do within the maps.
struct Hooks {
  static inline std::atomic<bool> hold_build{false};        // build() of a tree waits as long
  static inline std::atomic<std::int64_t> changes_left{0};  // the change that reaches 0 fails
};

template <class Value, class Unused = void>
class StandardMap {
 public:
  void build(const std::uint64_t* codes, const Value* values, std::size_t count) {
    // Trees only: changes that are not in one have values of another type.
    while (std::is_same_v<Value, std::uint64_t> && Hooks::hold_build) std::this_thread::yield();
    rows_.clear();
    for (std::size_t i = 0; i < count; ++i) rows_.insert_or_assign(codes[i], values[i]);
  }
  bool get(std::uint64_t code, Value& out) const {
    auto found = rows_.find(code);
    if (found == rows_.end()) return false;
    out = found->second;
    return true;
  }
  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) hits += found[i] = get(codes[i], out[i]);
    return hits;
  }
  bool insert_or_assign(std::uint64_t code, const Value& value) {
    if (Hooks::changes_left > 0 && --Hooks::changes_left == 0) throw std::bad_alloc();
    return rows_.insert_or_assign(code, value).second;
  }
  std::size_t insert_or_assign(const std::uint64_t* codes, const Value* values, std::size_t count) {
    std::size_t added = 0;
    for (std::size_t i = 0; i < count; ++i) added += insert_or_assign(codes[i], values[i]);
    return added;
  }
  bool erase(std::uint64_t code) { return rows_.erase(code) > 0; }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    std::size_t count = 0;
    for (auto row = rows_.lower_bound(from); row != rows_.end() && count < most; ++row, ++count) {
      codes[count] = row->first;
      values[count] = row->second;
    }
    return count;
  }
  std::size_t size() const { return rows_.size(); }

 private:
  std::map<std::uint64_t, Value> rows_;
};

template <class Value>
using State = std::map<std::uint64_t, Value>;

// All rows by scans of `step`; checks them against single lookups.
template <class Value, class Durable>
State<Value> state_of(const Durable& map, std::size_t step = 1000) {
  State<Value> state;
  std::vector<std::uint64_t> codes(step);
  std::vector<Value> values(step);
  for (std::uint64_t from = 0;;) {
    auto count = map.scan(from, step, codes.data(), values.data());
    for (std::size_t i = 0; i < count; ++i) {
      state.emplace_hint(state.end(), codes[i], values[i]);
      Value value{};
      CHECK(map.get(codes[i], value));
      CHECK(std::memcmp(&value, &values[i], value_bytes<Value>) == 0);
    }
    if (count < step || codes[count - 1] == ~std::uint64_t{0}) break;
    from = codes[count - 1] + 1;
  }
  CHECK(map.size() == state.size());
  return state;
}

// A code of few, with both ends of their range.
inline std::uint64_t small_code(std::mt19937_64& random, std::uint64_t codes) {
  auto code = random() % codes;
  return code + 1 == codes ? ~std::uint64_t{0} : code;
}

// Adds some changes to a batch and makes them in the model.
template <class Batch>
void random_changes(std::mt19937_64& random, Batch& batch, State<std::uint64_t>& state,
                    std::uint64_t codes, std::size_t count) {
  for (; count > 0; --count) {
    auto code = small_code(random, codes);
    if (random() % 3 == 0) {
      batch.erase(code);
      state.erase(code);
    } else {
      auto value = random();
      batch.put(code, value);
      state[code] = value;
    }
  }
}

}  // namespace headrace::index::testing
