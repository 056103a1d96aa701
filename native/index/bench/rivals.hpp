// Ordered maps that the index is compared with, each behind the same few calls. None is our own;
// std::map and a sorted vector are always there, the others where their packages are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "index/bench/workload.hpp"

#if defined(HEADRACE_BENCH_ABSL)
#include <absl/container/btree_map.h>
#endif
#if defined(HEADRACE_BENCH_JUDY)
#include <Judy.h>
#endif

namespace headrace::index::bench {

// std::map, absl::btree_map and headrace's map, which have the same interface.
template <class Map>
class Tree {
 public:
  using Value = typename Map::mapped_type;

  template <class... Arguments>
  explicit Tree(const Arguments&... arguments) : map_(arguments...) {}

  void build(std::span<const std::uint64_t> ascending) {
    map_.clear();
    for (auto code : ascending) map_.emplace_hint(map_.end(), code, value_of<Value>(code));
  }
  // Sum of all codes and values, in order.
  std::uint64_t iterate() const {
    std::uint64_t sum = 0;
    for (auto at = map_.begin(); at != map_.end(); ++at) sum += at->first ^ at->second;
    return sum;
  }
  bool find(std::uint64_t code, Value& out) const {
    auto found = map_.find(code);
    if (found == map_.end()) return false;
    out = found->second;
    return true;
  }
  bool insert(std::uint64_t code, Value value) { return map_.emplace(code, value).second; }
  bool erase(std::uint64_t code) { return map_.erase(code) == 1; }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    std::size_t count = 0;
    for (auto at = map_.lower_bound(from); count < most && at != map_.end(); ++at, ++count) {
      codes[count] = at->first;
      values[count] = at->second;
    }
    return count;
  }
  std::size_t size() const { return map_.size(); }

 private:
  Map map_;
};

template <class Value>
using StandardMap = Tree<std::map<std::uint64_t, Value>>;
#if defined(HEADRACE_BENCH_ABSL)
template <class Value>
using AbslMap = Tree<absl::btree_map<std::uint64_t, Value>>;
#endif

// Codes and values in two sorted vectors: binary search; an insertion moves half of them.
template <class ValueType>
class SortedVector {
 public:
  using Value = ValueType;

  void build(std::span<const std::uint64_t> ascending) {
    codes_.assign(ascending.begin(), ascending.end());
    values_.resize(codes_.size());
    std::transform(codes_.begin(), codes_.end(), values_.begin(), value_of<Value>);
  }
  bool find(std::uint64_t code, Value& out) const {
    auto at = lower_bound(code);
    if (at == codes_.size() || codes_[at] != code) return false;
    out = values_[at];
    return true;
  }
  bool insert(std::uint64_t code, Value value) {
    auto at = lower_bound(code);
    if (at < codes_.size() && codes_[at] == code) return false;
    codes_.insert(codes_.begin() + static_cast<std::ptrdiff_t>(at), code);
    values_.insert(values_.begin() + static_cast<std::ptrdiff_t>(at), value);
    return true;
  }
  bool erase(std::uint64_t code) {
    auto at = lower_bound(code);
    if (at == codes_.size() || codes_[at] != code) return false;
    codes_.erase(codes_.begin() + static_cast<std::ptrdiff_t>(at));
    values_.erase(values_.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    auto at = lower_bound(from);
    auto count = std::min(most, codes_.size() - at);
    std::copy_n(codes_.begin() + static_cast<std::ptrdiff_t>(at), count, codes);
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(at), count, values);
    return count;
  }
  std::size_t size() const { return codes_.size(); }

 private:
  std::size_t lower_bound(std::uint64_t code) const {
    return static_cast<std::size_t>(std::lower_bound(codes_.begin(), codes_.end(), code) -
                                    codes_.begin());
  }

  std::vector<std::uint64_t> codes_;
  std::vector<Value> values_;
};

#if defined(HEADRACE_BENCH_JUDY)
// JudyL: a radix tree from words to words. It allocates by malloc, as the others do.
template <class ValueType>
class Judy {
 public:
  using Value = ValueType;

  Judy() = default;
  ~Judy() { JudyLFreeArray(&array_, nullptr); }
  Judy(const Judy&) = delete;
  Judy& operator=(const Judy&) = delete;

  void build(std::span<const std::uint64_t> ascending) {
    JudyLFreeArray(&array_, nullptr);
    size_ = 0;
    for (auto code : ascending) insert(code, value_of<Value>(code));
  }
  bool find(std::uint64_t code, Value& out) const {
    auto* place = JudyLGet(array_, code, nullptr);
    if (place == nullptr) return false;
    out = read(place);
    return true;
  }
  bool insert(std::uint64_t code, Value value) {
    auto* place = JudyLIns(&array_, code, nullptr);
    auto& stored = *reinterpret_cast<std::uint64_t*>(place);
    if (stored != 0) return false;  // a new place holds 0, which value_of never is
    stored = value;
    ++size_;
    return true;
  }
  bool erase(std::uint64_t code) {
    auto gone = JudyLDel(&array_, code, nullptr) == 1;
    size_ -= gone;
    return gone;
  }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    std::size_t count = 0;
    Word_t code = from;
    auto* place = JudyLFirst(array_, &code, nullptr);
    for (; count < most && place != nullptr; ++count) {
      codes[count] = code;
      values[count] = read(place);
      place = JudyLNext(array_, &code, nullptr);
    }
    return count;
  }
  std::size_t size() const { return size_; }

 private:
  static Value read(const void* place) {
    return static_cast<Value>(*static_cast<const std::uint64_t*>(place));
  }

  void* array_ = nullptr;
  std::size_t size_ = 0;
};
#endif

}  // namespace headrace::index::bench
