// The map with the interface of std::map, for integer and floating-point keys.
//
// Differences: values are trivially copyable and have a default; iterators are read-only and give
// copies of entries (`std::pair<Key, Value>` by value), as leaves keep codes in place of keys and
// move their entries; so there is no operator[] (`at` and `insert_or_assign` stand for it) and no
// node handle; there is no comparison function (keys are in ascending order).
//
// Invalidation: an iterator stands at a key, not at memory. It remains usable after any insert or
// erase, also of its own key: it then gives the entry as it was when its leaf was read, and goes on
// to the next higher key. To see changes, look the key up again. Pointers of `get_if` are invalid
// after any change of the map, and iterators after a move of the map itself.
//
// Exceptions: what throws leaves the map as it was: allocation; keys that are NaN
// (std::domain_error); `at` without the key (std::out_of_range); a configuration that is out of
// range (std::invalid_argument). Threads: as CodeMap; `Shared` makes one writer and many readers
// safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "index/maps/code.hpp"
#include "index/maps/code_map.hpp"

namespace headrace::index {

template <CodedKey Key, class Value, class Sharing = Exclusive,
          class Allocator = std::allocator<std::byte>>
class Map {
  using Codes = CodeMap<Value, Sharing, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = Value;
  using value_type = std::pair<Key, Value>;
  using size_type = std::size_t;
  using allocator_type = Allocator;

  // Input iterator; copies share what was read of the leaf until one of them goes on.
  class const_iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::pair<Key, Value>;
    using difference_type = std::ptrdiff_t;
    using reference = value_type;
    struct pointer {
      value_type entry;
      const value_type* operator->() const { return &entry; }
    };

    const_iterator() = default;
    reference operator*() const { return {decode<Key>(at_->code()), at_->value()}; }
    pointer operator->() const { return {**this}; }
    const_iterator& operator++() {
      if (at_.use_count() > 1) {  // another copy stands here, perhaps at a key that is gone
        const auto code = at_->code();
        const bool last = code == std::numeric_limits<std::uint64_t>::max();
        return *this = last ? const_iterator() : const_iterator(codes_, code + 1);
      }
      at_->next();
      if (!at_->valid()) at_.reset();
      return *this;
    }
    const_iterator operator++(int) {
      auto before = *this;
      ++*this;
      return before;
    }
    friend bool operator==(const const_iterator& a, const const_iterator& b) {
      if (!a.at_ || !b.at_) return !a.at_ && !b.at_;
      return a.at_->code() == b.at_->code();
    }

   private:
    friend class Map;
    const_iterator(const Codes* codes, std::uint64_t from)
        : codes_(codes), at_(std::make_shared<typename Codes::Cursor>(codes->lower_bound(from))) {
      if (!at_->valid()) at_.reset();
    }
    const Codes* codes_ = nullptr;
    std::shared_ptr<typename Codes::Cursor> at_;
  };
  using iterator = const_iterator;

  explicit Map(const Configuration& configuration = {}, const Allocator& allocator = {})
      : codes_(configuration, allocator) {}
  Map(std::initializer_list<value_type> entries) : Map() { insert(entries.begin(), entries.end()); }
  template <std::input_iterator Iterator>
  Map(Iterator first, Iterator last, const Configuration& configuration = {},
      const Allocator& allocator = {})
      : codes_(configuration, allocator) {
    assign(first, last);
  }

  // Replaces everything by a bulk load, sorted or not: of equal keys the last counts.
  template <std::input_iterator Iterator>
  void assign(Iterator first, Iterator last, int threads = 1) {
    std::vector<std::uint64_t> codes;
    std::vector<Value> values;
    for (; first != last; ++first) {
      const auto& [key, value] = *first;
      codes.push_back(encode<Key>(key));
      values.push_back(value);
    }
    codes_.build(codes.data(), values.data(), codes.size(), threads);
  }

  const_iterator begin() const { return {&codes_, 0}; }
  const_iterator end() const { return {}; }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }

  bool empty() const { return codes_.empty(); }
  size_type size() const { return codes_.size(); }
  void clear() { codes_.clear(); }

  // Of equal keys the first counts. True in the second: it was inserted.
  std::pair<const_iterator, bool> insert(const value_type& entry) {
    return emplace(entry.first, entry.second);
  }
  // One after the other: those before one that throws stay.
  template <std::input_iterator Iterator>
  void insert(Iterator first, Iterator last) {
    for (; first != last; ++first) try_insert(first->first, first->second);
  }
  std::pair<const_iterator, bool> emplace(Key key, const Value& value) {
    const auto code = encode(key);
    const bool fresh = codes_.insert(code, value);
    try {
      return {const_iterator(&codes_, code), fresh};
    } catch (...) {
      if (fresh) codes_.erase(code);
      throw;
    }
  }
  // The same without an iterator, which costs a copy of the key's leaf.
  bool try_insert(Key key, const Value& value) { return codes_.insert(encode(key), value); }
  // True: the key is new.
  bool insert_or_assign(Key key, const Value& value) {
    return codes_.insert_or_assign(encode(key), value);
  }
  // False: the key is not there.
  bool update(Key key, const Value& value) { return codes_.update(encode(key), value); }
  size_type erase(Key key) { return codes_.erase(encode(key)); }
  const_iterator erase(const const_iterator& at) {
    const auto code = at.at_->code();
    auto next = at;
    ++next;
    codes_.erase(code);
    return next;
  }

  // Throws std::out_of_range.
  Value at(Key key) const {
    if (auto value = get(key)) return *value;
    throw std::out_of_range("index: no such key");
  }
  std::optional<Value> get(Key key) const {
    Value value{};
    return codes_.get(encode(key), value) ? std::optional<Value>(value) : std::nullopt;
  }
  // The value in its place; null: not there.
  const Value* get_if(Key key) const
    requires(!Sharing::kShared)
  {
    return codes_.find(encode(key));
  }
  bool contains(Key key) const { return codes_.contains(encode(key)); }
  size_type count(Key key) const { return contains(key); }
  const_iterator find(Key key) const {
    return contains(key) ? const_iterator(&codes_, encode(key)) : end();
  }
  const_iterator lower_bound(Key key) const { return {&codes_, encode(key)}; }
  const_iterator upper_bound(Key key) const {
    const auto code = encode(key);
    return code == ~std::uint64_t{0} ? end() : const_iterator(&codes_, code + 1);
  }
  std::pair<const_iterator, const_iterator> equal_range(Key key) const {
    return {lower_bound(key), upper_bound(key)};
  }

  friend bool operator==(const Map& a, const Map& b) {
    if (a.size() != b.size()) return false;
    auto other = b.begin();
    for (const auto& entry : a) {
      if (!(entry == *other)) return false;
      ++other;
    }
    return true;
  }

  // Codes, batches, statistics and configuration.
  Codes& codes() { return codes_; }
  const Codes& codes() const { return codes_; }

 private:
  Codes codes_;
};

}  // namespace headrace::index
