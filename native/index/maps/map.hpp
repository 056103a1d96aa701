// The map with the interface of std::map, for integer and floating-point keys.
//
// Differences: leaves keep codes in place of keys and move their entries, so there are no
// references to entries. Iterators are bidirectional and give entries by value
// (`std::pair<Key, Value>`); `operator[]` gives an object that stands for the value; `at` gives a
// copy; a node handle holds a copy. Values are trivially copyable and have a default. Keys are in
// ascending order, without a comparison function; hints of insertions are not needed, and not used.
//
// Invalidation: an iterator holds its entry. It remains usable after any insert or erase, also of
// its own key: it gives the entry as it was when it came there, and goes on to the next key that
// the map has by then, either way. Values of the keys after it may be those of when it read their
// leaf, if they are replaced meanwhile. Pointers of `get_if` are invalid after any change of the
// map, and iterators after a move or swap of the map itself.
//
// Exceptions: what throws leaves the map as it was: allocation, by moves of iterators, too, which
// then stay; keys that are NaN (std::domain_error); `at` without the key (std::out_of_range); a
// configuration that is out of range (std::invalid_argument). Of operations on ranges, and `merge`,
// what was done before stays. Threads: as CodeMap, but that iterators only read; `Shared` makes one
// writer and many readers safe.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/maps/code.hpp"
#include "index/maps/code_map.hpp"
#include "index/maps/mapped_value.hpp"

namespace headrace::index {

namespace detail {

// The place of an iterator of a map, and its entry.
template <class Map>
class MapIterator {
 public:
  using iterator_category = std::bidirectional_iterator_tag;
  using value_type = typename Map::value_type;
  using difference_type = std::ptrdiff_t;
  using reference = value_type;
  struct pointer {
    value_type entry;
    const value_type* operator->() const { return &entry; }
  };

  MapIterator() = default;
  reference operator*() const {
    return {decode<typename value_type::first_type>(place_.code()), place_.value()};
  }
  pointer operator->() const { return {**this}; }
  friend bool operator==(const MapIterator& a, const MapIterator& b) {
    if (!a.place_.valid() || !b.place_.valid()) return a.place_.valid() == b.place_.valid();
    return a.place_.code() == b.place_.code();
  }

 protected:
  explicit MapIterator(typename Map::Place place) : place_(std::move(place)) {}
  typename Map::Place place_;
};

}  // namespace detail

template <CodedKey Key, class Value, class Sharing = Exclusive,
          class Allocator = std::allocator<std::byte>>
class Map {
  using Codes = CodeMap<Value, Sharing, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = Value;
  using value_type = std::pair<Key, Value>;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using key_compare = std::less<Key>;
  using allocator_type = Allocator;
  using reference = value_type;
  using const_reference = value_type;
  using Place = typename Codes::Place;

  struct value_compare {
    bool operator()(const value_type& a, const value_type& b) const { return a.first < b.first; }
  };

  class const_iterator : public detail::MapIterator<Map> {
    using Base = detail::MapIterator<Map>;
    using Base::place_;

   public:
    const_iterator() = default;
    const_iterator& operator++() {
      place_.next();
      return *this;
    }
    const_iterator operator++(int) {
      auto before = *this;
      ++*this;
      return before;
    }
    const_iterator& operator--() {
      place_.previous();
      return *this;
    }
    const_iterator operator--(int) {
      auto before = *this;
      --*this;
      return before;
    }

   private:
    friend class Map;
    explicit const_iterator(Place place) : Base(std::move(place)) {}
  };
  using iterator = const_iterator;

  // Stands at its entry, not behind it as std::reverse_iterator does, which would move at every
  // access; rend() is at no entry.
  class const_reverse_iterator : public detail::MapIterator<Map> {
    using Base = detail::MapIterator<Map>;
    using Base::place_;

   public:
    using iterator_type = const_iterator;
    const_reverse_iterator() = default;
    explicit const_reverse_iterator(const_iterator behind) : Base(std::move(behind.place_)) {
      place_.previous();
    }
    const_iterator base() const {
      if (!place_.valid()) return const_iterator(place_.first());
      auto at = const_iterator(place_);
      return ++at;
    }
    const_reverse_iterator& operator++() {
      place_.previous();
      return *this;
    }
    const_reverse_iterator operator++(int) {
      auto before = *this;
      ++*this;
      return before;
    }
    const_reverse_iterator& operator--() {
      if (place_.valid()) {
        place_.next();
      } else {
        place_ = place_.first();
      }
      return *this;
    }
    const_reverse_iterator operator--(int) {
      auto before = *this;
      --*this;
      return before;
    }

   private:
    friend class Map;
    explicit const_reverse_iterator(Place place) : Base(std::move(place)) {}
  };
  using reverse_iterator = const_reverse_iterator;

  // A copy of an entry that was taken out of a map; its key may be changed.
  class node_type {
   public:
    node_type() = default;
    bool empty() const { return !entry_.has_value(); }
    explicit operator bool() const { return !empty(); }
    Key& key() { return entry_->first; }
    const Key& key() const { return entry_->first; }
    Value& mapped() { return entry_->second; }
    const Value& mapped() const { return entry_->second; }

   private:
    friend class Map;
    std::optional<value_type> entry_;
  };
  struct insert_return_type {
    iterator position;
    bool inserted = false;
    node_type node;
  };

  Map() : Map(Configuration{}) {}
  explicit Map(const Configuration& configuration, const Allocator& allocator = {})
      : codes_(configuration, allocator) {}
  explicit Map(const Allocator& allocator) : codes_(allocator) {}
  Map(const Map& other, const Allocator& allocator) : codes_(other.codes_, allocator) {}
  Map(Map&& other, const Allocator& allocator) : codes_(std::move(other.codes_), allocator) {}
  Map(std::initializer_list<value_type> entries, const Configuration& configuration = {},
      const Allocator& allocator = {})
      : Map(entries.begin(), entries.end(), configuration, allocator) {}
  template <std::input_iterator Iterator>
  Map(Iterator first, Iterator last, const Configuration& configuration = {},
      const Allocator& allocator = {})
      : codes_(configuration, allocator) {
    assign(first, last);
  }
  Map& operator=(std::initializer_list<value_type> entries) {
    assign(entries.begin(), entries.end());
    return *this;
  }

  // Replaces everything by a bulk load, sorted or not: of equal keys the first counts.
  template <std::input_iterator Iterator>
  void assign(Iterator first, Iterator last, int threads = 1) {
    std::vector<std::uint64_t> codes;
    std::vector<Element<Value>> values;
    for (; first != last; ++first) {
      const auto& [key, value] = *first;
      const Value& converted = value;
      codes.push_back(encode<Key>(key));
      values.push_back(converted);
    }
    if (std::adjacent_find(codes.begin(), codes.end(), std::greater_equal<>()) != codes.end()) {
      // Of equal codes `build` keeps the last.
      std::reverse(codes.begin(), codes.end());
      std::reverse(values.begin(), values.end());
    }
    codes_.build(codes.data(), value_array<Value>(values), codes.size(), threads);
  }

  const_iterator begin() const { return const_iterator(codes_.first_from(0)); }
  const_iterator end() const { return const_iterator(codes_.past_last()); }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }
  const_reverse_iterator rbegin() const { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const { return const_reverse_iterator(codes_.past_last()); }
  const_reverse_iterator crbegin() const { return rbegin(); }
  const_reverse_iterator crend() const { return rend(); }

  bool empty() const { return codes_.empty(); }
  size_type size() const { return codes_.size(); }
  size_type max_size() const {
    return std::numeric_limits<difference_type>::max() / sizeof(value_type);
  }
  void clear() { codes_.clear(); }
  // Gives memory back that erased entries left.
  void shrink_to_fit()
    requires(!Sharing::kShared)
  {
    codes_.shrink_to_fit();
  }
  allocator_type get_allocator() const { return codes_.allocator(); }
  key_compare key_comp() const { return {}; }
  value_compare value_comp() const { return {}; }

  // Of equal keys the first counts. True in the second: it was inserted.
  std::pair<iterator, bool> insert(const value_type& entry) {
    const auto code = encode(entry.first);
    Value value = entry.second;
    const bool fresh = codes_.find_or_insert(code, entry.second, value);
    return {iterator(codes_.place(code, value)), fresh};
  }
  iterator insert(const_iterator, const value_type& entry) { return insert(entry).first; }
  // One after the other: those before one that throws stay.
  template <std::input_iterator Iterator>
  void insert(Iterator first, Iterator last) {
    for (; first != last; ++first) {
      const auto& [key, value] = *first;
      codes_.insert(encode<Key>(key), value);
    }
  }
  void insert(std::initializer_list<value_type> entries) { insert(entries.begin(), entries.end()); }
  insert_return_type insert(node_type&& node) {
    if (node.empty()) return {end(), false, {}};
    const auto [position, inserted] = insert(*node.entry_);
    insert_return_type outcome{position, inserted, {}};
    if (!inserted) outcome.node = std::move(node);
    node.entry_.reset();
    return outcome;
  }
  iterator insert(const_iterator, node_type&& node) {
    if (node.empty()) return end();
    const auto [position, inserted] = insert(*node.entry_);
    if (inserted) node.entry_.reset();
    return position;
  }
  template <class... Arguments>
  std::pair<iterator, bool> emplace(Arguments&&... arguments) {
    return insert(value_type(std::forward<Arguments>(arguments)...));
  }
  template <class... Arguments>
  iterator emplace_hint(const_iterator, Arguments&&... arguments) {
    return emplace(std::forward<Arguments>(arguments)...).first;
  }
  template <class... Arguments>
  std::pair<iterator, bool> try_emplace(Key key, Arguments&&... arguments) {
    return insert({key, Value(std::forward<Arguments>(arguments)...)});
  }
  template <class... Arguments>
  iterator try_emplace(const_iterator, Key key, Arguments&&... arguments) {
    return try_emplace(key, std::forward<Arguments>(arguments)...).first;
  }
  // True in the second: the key is new.
  std::pair<iterator, bool> insert_or_assign(Key key, const Value& value) {
    const auto code = encode(key);
    const Value stored = value;
    const bool fresh = codes_.insert_or_assign(code, stored);
    return {iterator(codes_.place(code, stored)), fresh};
  }
  iterator insert_or_assign(const_iterator, Key key, const Value& value) {
    return insert_or_assign(key, value).first;
  }
  // False: the key is not there.
  bool update(Key key, const Value& value) { return codes_.update(encode(key), value); }

  size_type erase(Key key) { return codes_.erase(encode(key)); }
  // Returns where the next entry is.
  iterator erase(const_iterator at) {
    const auto code = at.place_.code();
    ++at;
    at.place_.after([&] { codes_.erase(code); });
    return at;
  }
  iterator erase(const_iterator first, const_iterator last) {
    if (first == last) return last;
    const auto before = last.place_.valid() ? last.place_.code() - 1 : ~std::uint64_t{0};
    codes_.erase_range(first.place_.code(), before,
                       [](std::uint64_t, const Value&) { return true; });
    return last;
  }
  // Erases entries that `matches`, and returns how many.
  template <class Matches>
  friend size_type erase_if(Map& map, Matches matches) {
    return map.codes_.erase_range(
        0, ~std::uint64_t{0}, [&matches](std::uint64_t code, const Value& value) {
          return static_cast<bool>(matches(value_type(decode<Key>(code), value)));
        });
  }

  // An empty handle: the key is not there.
  node_type extract(Key key) {
    node_type node;
    const auto code = encode(key);
    Value value{};
    if (codes_.get(code, value)) node.entry_ = value_type(key, value);
    codes_.erase(code);
    return node;
  }
  node_type extract(const_iterator at) { return extract(at->first); }
  // Moves entries whose keys this map lacks here.
  template <class OtherSharing>
  void merge(Map<Key, Value, OtherSharing, Allocator>& source) {
    if (static_cast<const void*>(&source) == this) return;
    source.codes().erase_range(
        0, ~std::uint64_t{0},
        [this](std::uint64_t code, const Value& value) { return codes_.insert(code, value); });
  }
  template <class OtherSharing>
  void merge(Map<Key, Value, OtherSharing, Allocator>&& source) {
    merge(source);
  }

  void swap(Map& other) noexcept { std::swap(codes_, other.codes_); }
  friend void swap(Map& a, Map& b) noexcept { a.swap(b); }

  // Stands for the value of a key, which is inserted with a default value if it is not there.
  MappedValue<Map> operator[](Key key) {
    codes_.insert(encode(key), Value{});
    return {*this, key};
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
    const auto code = encode(key);
    Value value{};
    return codes_.get(code, value) ? const_iterator(codes_.place(code, value)) : end();
  }
  const_iterator lower_bound(Key key) const {
    return const_iterator(codes_.first_from(encode(key)));
  }
  const_iterator upper_bound(Key key) const {
    const auto code = encode(key);
    return code == ~std::uint64_t{0} ? end() : const_iterator(codes_.first_from(code + 1));
  }
  std::pair<const_iterator, const_iterator> equal_range(Key key) const {
    auto first = lower_bound(key);
    auto last = first;
    if (first != end() && encode(first->first) == encode(key)) ++last;
    return {std::move(first), std::move(last)};
  }

  friend bool operator==(const Map& a, const Map& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
  }
  friend auto operator<=>(const Map& a, const Map& b) {
    return std::lexicographical_compare_three_way(
        a.begin(), a.end(), b.begin(), b.end(),
        [](const value_type& left, const value_type& right) { return left <=> right; });
  }

  // Codes, batches, statistics and configuration.
  Codes& codes() { return codes_; }
  const Codes& codes() const { return codes_; }

 private:
  Codes codes_;
};

template <std::input_iterator Iterator>
Map(Iterator, Iterator, const Configuration& = {})
    -> Map<std::remove_const_t<typename std::iter_value_t<Iterator>::first_type>,
           typename std::iter_value_t<Iterator>::second_type>;
template <CodedKey Key, class Value>
Map(std::initializer_list<std::pair<Key, Value>>, const Configuration& = {}) -> Map<Key, Value>;

}  // namespace headrace::index
