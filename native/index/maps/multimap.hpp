// An ordered map that keeps equal keys: entries are appended to the fragments of log leaves without
// a search, as the paper's blind inserts (MAPLE, section 6.2.2), and found by a search of one leaf.
//
// All entries of a key are in one leaf, which grows beyond `fragment_keys` if it has no other key.
// Such a leaf that is full with tens of thousands of entries is sealed: taken out of the tree as it
// is and kept beside it, so that no change moves more entries than a change of a map.
//
// One thread at a time, or several that only read (after a scan: a scan puts leaves in order). An
// operation that throws leaves the map as it was: allocation, NaN as a key (std::domain_error), a
// configuration that is out of range (std::invalid_argument). Every change invalidates iterators
// and ranges. The order of the entries of one key is not defined.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/configuration.hpp"
#include "index/maps/code.hpp"
#include "index/maps/multimap_iterator.hpp"
#include "index/maps/multimap_sealed.hpp"
#include "index/tree/build.hpp"
#include "index/tree/change.hpp"
#include "index/tree/inspect.hpp"
#include "index/tree/sort.hpp"
#include "index/tree/tree.hpp"

namespace headrace::index {

// Configuration of a multimap: log leaves, which are appended to fastest without fingerprints.
inline Configuration multimap_configuration() {
  Configuration configuration;
  configuration.leaf = Leaf::log;
  configuration.fingerprints = false;
  return configuration;
}

template <CodedKey Key, class Value, class Sharing = Exclusive,
          class Allocator = std::allocator<std::byte>>
class Multimap {
  static_assert(!Sharing::kShared, "a multimap has no readers beside its writer");
  static_assert(std::is_trivially_copyable_v<Value> && std::is_default_constructible_v<Value>,
                "values are moved as bytes: they need to be trivially copyable, with a default");
  using Map = Tree<Value, Sharing, Allocator>;
  using Log = LogLeaf<Value, Sharing>;
  using Sealed = SealedLeaves<Value, Sharing, Allocator>;
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  using Item = MultimapItem<Key, Value>;
  using Iterator = MultimapIterator<Key, Value, Sharing, Allocator>;
  struct Range;

  Multimap() : Multimap(multimap_configuration()) {}
  // Throws std::invalid_argument for a configuration that is not valid or has other leaves.
  explicit Multimap(const Configuration& configuration, const Allocator& allocator = {})
      : tree_(checked(configuration), allocator), sealed_(allocator) {}
  Multimap(Multimap&& other) noexcept
      : tree_(std::move(other.tree_)), sealed_(tree_.memory.allocator()) {
    sealed_.swap(other.sealed_);
  }
  Multimap& operator=(Multimap&& other) noexcept(detail::kMovesMemory<Allocator>) {
    if (detail::moves_memory(allocator(), other.allocator())) {
      exchange(other);
    } else {
      become_copy(other, allocator());
    }
    return *this;
  }
  Multimap(const Multimap& other)
      : Multimap(other.configuration(), detail::allocator_of_copy(other.allocator())) {
    copy_from(other);
  }
  Multimap& operator=(const Multimap& other) {
    become_copy(other, detail::allocator_assigned(allocator(), other.allocator()));
    return *this;
  }
  ~Multimap() { sealed_.clear(tree_.memory); }

  // Replaces everything. Keys in any order. `values` may be null if values are empty.
  void build(const Key* keys, const Value* values, std::size_t count, int threads = 1);

  // Without a search: costs the same however many entries the key has.
  void append(Key key, const Value& value) {
    const auto code = encode(key);
    for (;;) {
      const auto word = tree_.leaf(code);
      if (!word.none() && Log(word).append(code, value)) break;
      make_room(code);
    }
    tree_.set_size(tree_.size() + 1);
  }
  // If memory ends inside of an array, the keys before are in the map.
  void append(const Key* keys, const Value* values, std::size_t count) {
    if constexpr (std::is_floating_point_v<Key>) std::for_each_n(keys, count, encode<Key>);
    const Entries<Value> given{nullptr, values, count};
    for (std::size_t i = 0; i < count; i += kAtOnce) {
      const auto end = std::min(i + kAtOnce, count);
      prefetch(keys + i, end - i);
      for (auto j = i; j < end; ++j) append(keys[j], given.value(j));
    }
  }

  bool contains(Key key) const {
    const auto code = encode(key);
    const auto word = tree_.leaf(code);
    return (!word.none() && Log(word).find(code) != nullptr) || sealed_.contains(code);
  }
  std::size_t count(Key key) const {
    std::size_t found = 0;
    for_each(key, [&found](const Value&) { ++found; });
    return found;
  }
  // action(value) for each entry of a key.
  template <class Action>
  void for_each(Key key, const Action& action) const {
    const auto code = encode(key);
    sealed_.each(code, action);
    if (const auto word = tree_.leaf(code); !word.none()) Log(word).each(code, action);
  }

  // Each returns how many entries were erased. `matches(value)`: only of these values.
  std::size_t erase(Key key) {
    return erase_some(key, kAll, [](const Value&) { return true; });
  }
  std::size_t erase_one(Key key) {
    return erase_some(key, 1, [](const Value&) { return true; });
  }
  template <class Matches>
  std::size_t erase_if(Key key, const Matches& matches) {
    return erase_some(key, kAll, matches);
  }
  void clear() {
    sealed_.clear(tree_.memory);
    const auto old = tree_.root();
    tree_.set_root(Word());
    tree_.set_size(0);
    tree_.release_all(old);
  }

  std::size_t size() const { return tree_.size(); }
  bool empty() const { return size() == 0; }

  // In ascending order of keys, with std::default_sentinel as their end.
  Iterator begin() const { return Iterator(tree_, sealed_, 0, kHighest); }
  std::default_sentinel_t end() const { return {}; }
  Iterator lower_bound(Key key) const { return Iterator(tree_, sealed_, encode(key), kHighest); }
  // Entries of a key, and of keys from `first` to `last`, both included.
  Range equal_range(Key key) const { return range(key, key); }
  Range range(Key first, Key last) const { return {this, encode(first), encode(last)}; }
  // Up to `most` entries in ascending order from a key on; returns how many.
  std::size_t scan(Key from, std::size_t most, Key* keys, Value* values) const {
    std::size_t copied = 0;
    for (auto at = lower_bound(from); copied < most && at != end(); ++at, ++copied) {
      keys[copied] = (*at).key;
      if constexpr (value_bytes<Value> != 0) values[copied] = (*at).value;
    }
    return copied;
  }

  Allocator allocator() const { return tree_.memory.allocator(); }
  const Configuration& configuration() const { return tree_.configuration; }
  Statistics statistics() const;
  // Throws std::logic_error naming the invariant that is broken.
  void verify() const;

 private:
  static constexpr auto kHighest = std::numeric_limits<std::uint64_t>::max();
  static constexpr auto kAll = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kAtOnce = 32;
  // Entries of a full leaf that is sealed: as leaves are built with room, one of fewer has at most
  // 65,536 when it is full.
  static constexpr std::size_t kSealedEntries = kMostMovedKeys / 5 * 2;
  // Entries of one code that are loaded into a leaf of the tree, which may be filled to 0.3 only.
  static constexpr std::size_t kLoadedEntries =
      std::max<std::size_t>(1, 8'192 / (1 + (9 + value_bytes<Value>) / kLineBytes));

  static const Configuration& checked(const Configuration& configuration) {
    configuration.validate();
    if (configuration.leaf != Leaf::log) {
      const auto name = kLeafNames[static_cast<std::size_t>(configuration.leaf)];
      throw std::invalid_argument(std::string("multimap: leaf is ") + name + ", needs log");
    }
    return configuration;
  }

  void exchange(Multimap& other) noexcept {
    tree_ = std::move(other.tree_);
    sealed_.swap(other.sealed_);
  }
  // `allocator`: this map's, or the other's that goes along.
  void become_copy(const Multimap& other, const Allocator& allocator) {
    Multimap copy(other.configuration(), allocator);
    copy.copy_from(other);
    exchange(copy);
  }
  void copy_from(const Multimap& other) {
    Vector<std::uint64_t> codes(tree_.memory.allocator());
    Vector<Element<Value>> values(tree_.memory.allocator());
    for (auto item : other) {
      codes.push_back(encode(item.key));
      values.push_back(item.value);
    }
    build_sorted({codes.data(), value_array<Value>(values), codes.size()});
  }

  // Fetches the ends of the leaves of some keys into the cache, all headers first.
  void prefetch(const Key* keys, std::size_t count) const {
    Word words[kAtOnce];
    for (std::size_t i = 0; i < count; ++i) {
      words[i] = tree_.leaf(encode(keys[i]));
      __builtin_prefetch(words[i].to());
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (words[i].none()) continue;
      const auto entries = Log(words[i]).entries();
      __builtin_prefetch(entries.codes + entries.count, 1);
      __builtin_prefetch(entries.values + entries.count, 1);
    }
  }

  template <class Matches>
  std::size_t erase_some(Key key, std::size_t most, const Matches& matches);
  void build_sorted(const Entries<Value>& entries);
  void set_root_of(const Entries<Value>& entries);
  [[gnu::noinline]] void make_room(std::uint64_t code);
  [[gnu::noinline]] void compact(std::uint64_t code) noexcept {
    try {
      Change<Value, Sharing, Allocator>(tree_).compact(code);
    } catch (...) {  // NOLINT: the leaf remains as large as it is
    }
  }
  bool seal(std::uint64_t code, Word word);
  void seal_copy(const Entries<Value>& entries);
  std::size_t sealed_entries() const {
    std::size_t entries = 0;
    sealed_.each_leaf([&entries](std::uint64_t, const Log& leaf) { entries += leaf.count(); });
    return entries;
  }

  Map tree_;
  Sealed sealed_;  // full leaves of one code
};

template <CodedKey Key, class Value, class Sharing, class Allocator>
struct Multimap<Key, Value, Sharing, Allocator>::Range {
  const Multimap* map;
  std::uint64_t first;
  std::uint64_t last;

  Iterator begin() const { return Iterator(map->tree_, map->sealed_, first, last); }
  std::default_sentinel_t end() const { return {}; }
};

template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::build(const Key* keys, const Value* values,
                                                     std::size_t count, int threads) {
  const Entries<Value> given{nullptr, values, count};
  Vector<Entry<Value>> sorted(count, tree_.memory.allocator());
  for (std::size_t i = 0; i < count; ++i) sorted[i] = {encode(keys[i]), given.value(i)};
  {
    Vector<Entry<Value>> other(count, tree_.memory.allocator());
    sort_entries(sorted.data(), other.data(), count, threads);
  }
  Vector<std::uint64_t> codes(count, tree_.memory.allocator());
  Vector<Element<Value>> parted(value_bytes<Value> == 0 ? 0 : count, tree_.memory.allocator());
  EntryBuffer<Value> entries{codes.data(), value_array<Value>(parted), 0};
  for (const auto& entry : sorted) entries.append(entry.code, entry.value);
  build_sorted(entries);
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::build_sorted(const Entries<Value>& entries) {
  Multimap made(configuration(), tree_.memory.allocator());
  Vector<std::uint64_t> codes(entries.count, tree_.memory.allocator());
  Vector<Element<Value>> values(value_bytes<Value> == 0 ? 0 : entries.count,
                                tree_.memory.allocator());
  EntryBuffer<Value> kept{codes.data(), value_array<Value>(values), 0};
  for (std::size_t begin = 0, end = 0; begin < entries.count; begin = end) {
    const auto* bound = std::upper_bound(entries.codes + begin, entries.codes + entries.count,
                                         entries.codes[begin]);
    end = static_cast<std::size_t>(bound - entries.codes);
    for (; end - begin > kLoadedEntries; begin += kLoadedEntries) {
      made.seal_copy(entries.part(begin, begin + kLoadedEntries));
    }
    for (auto i = begin; i < end; ++i) kept.append(entries.codes[i], entries.value(i));
  }
  made.set_root_of(kept);
  made.tree_.set_size(entries.count);
  *this = std::move(made);
}

// The tree, which is empty, from entries in order.
template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::set_root_of(const Entries<Value>& entries) {
  typename Map::Draft draft(tree_);
  Builder<Value, Sharing, Allocator> builder(tree_, draft, configuration().fill);
  const auto root = builder.root(entries);
  draft.keep(0);
  tree_.set_root(root);
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::make_room(std::uint64_t code) {
  if (tree_.root().none()) return set_root_of({});
  if (seal(code, tree_.leaf(code))) return;
  Change<Value, Sharing, Allocator>(tree_).make_room(code);
}

// Takes the full leaf of a code out of the tree if it is large and has one code only.
template <CodedKey Key, class Value, class Sharing, class Allocator>
bool Multimap<Key, Value, Sharing, Allocator>::seal(std::uint64_t code, Word word) {
  if (word.none()) return false;
  const auto entries = Log(word).entries();
  if (entries.count < kSealedEntries) return false;
  const auto only = entries.codes[0];
  const auto* end = entries.codes + entries.count;
  if (!std::all_of(entries.codes, end, [only](auto each) { return each == only; })) return false;
  Vector<Step> path(tree_.memory.allocator());
  tree_.trace(code, path);
  sealed_.add(only, word);
  const auto& step = path.back();
  Map::point(step.node, step.first, step.end, Word());
  if (step.node.kind() == Kind::linear) --step.node.template to<LinearNode>()->children;
  return true;
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::seal_copy(const Entries<Value>& entries) {
  const bool fingerprints = configuration().fingerprints;
  const auto units = Log::units(entries.count, 1, fingerprints);
  typename Map::Draft draft(tree_);
  auto* lines = draft.allocate(units * Log::kUnitLines);
  Log::create(lines, units, fingerprints, entries);
  sealed_.add(entries.codes[0], Word(lines, Kind::log, units));
  draft.keep(0);
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
template <class Matches>
std::size_t Multimap<Key, Value, Sharing, Allocator>::erase_some(Key key, std::size_t most,
                                                                 const Matches& matches) {
  const auto code = encode(key);
  std::size_t erased = 0;
  // `matches` may throw: what was erased before is counted.
  const auto counting = [&](const Value& value) {
    const bool found = matches(value);
    if (found) tree_.set_size(tree_.size() - 1);
    return found;
  };
  if (const auto word = tree_.leaf(code); !word.none()) {
    erased = Log(word).erase_each(code, most, counting);
    if (erased > 0 && Log(word).sparse()) compact(code);
  }
  if (erased < most) erased += sealed_.erase(tree_.memory, code, most - erased, counting);
  return erased;
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
Statistics Multimap<Key, Value, Sharing, Allocator>::statistics() const {
  auto result = Inspector<Value, Sharing, Allocator>(tree_).statistics();
  const auto type = static_cast<std::size_t>(Leaf::log);
  sealed_.each_leaf([&](std::uint64_t, const Log&) { ++result.leaves[type]; });
  result.keys[type] += sealed_entries();
  return result;
}

template <CodedKey Key, class Value, class Sharing, class Allocator>
void Multimap<Key, Value, Sharing, Allocator>::verify() const {
  const auto require = [](bool holds, std::uint64_t code, const char* what) {
    if (holds) return;
    throw std::logic_error("multimap: leaf of code " + std::to_string(code) + ": " + what);
  };
  auto entries = sealed_entries();
  for (std::uint64_t first = 0, last = 0;; first = last + 1) {
    const auto word = tree_.leaf(first, last);
    const auto all = word.none() ? Entries<Value>{} : Log(word).entries();
    entries += all.count;
    for (std::size_t i = 0; i < all.count; ++i) {
      require(all.codes[i] >= first && all.codes[i] <= last, first, "a code out of its range");
      if (i % 64 == 0) require(contains(decode<Key>(all.codes[i])), first, "a key is not found");
    }
    if (last == kHighest) break;
  }
  sealed_.each_leaf([&](std::uint64_t code, const Log& leaf) {
    const auto all = leaf.entries();
    const auto same = std::count(all.codes, all.codes + all.count, code);
    require(all.count > 0 && static_cast<std::size_t>(same) == all.count, code, "another code");
  });
  require(entries == size(), 0, "the size differs from the entries");
}

}  // namespace headrace::index
