// The multimap against std::multimap: random and adversarial keys, many equal ones, sealed leaves,
// failing allocations.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "index/configuration.hpp"
#include "index/maps/multimap.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

constexpr auto kHighest = ~std::uint64_t{0};
static_assert(std::input_iterator<Multimap<std::uint64_t, std::uint64_t>::Iterator>);

Configuration small_leaves(bool fingerprints) {
  auto configuration = multimap_configuration();
  configuration.fragment_keys = 16;
  configuration.fragments = 64;
  configuration.initial_fragments = 4;
  configuration.fingerprints = fingerprints;
  return configuration;
}

template <class Key, class Value>
using Reference = std::multimap<Key, Value>;
template <class Key, class Value>
using Items = std::vector<std::pair<Key, Value>>;

// Entries of equal keys may be in any order.
template <class Key, class Value>
Items<Key, Value> sorted(Items<Key, Value> items) {
  std::sort(items.begin(), items.end());
  return items;
}

template <class Map, class Key, class Value>
void compare(const Map& map, const Reference<Key, Value>& reference, Key from) {
  map.verify();
  CHECK(map.size() == reference.size() && map.empty() == reference.empty());
  Items<Key, Value> found;
  for (const auto& item : map) {
    CHECK(found.empty() || found.back().first <= item.key);
    found.emplace_back(item.key, item.value);
  }
  CHECK(sorted(found) == sorted(Items<Key, Value>(reference.begin(), reference.end())));
  found.clear();
  for (auto at = map.lower_bound(from); at != map.end(); ++at) {
    found.emplace_back((*at).key, (*at).value);
  }
  CHECK(sorted(found) == sorted(Items<Key, Value>(reference.lower_bound(from), reference.end())));
  std::vector<Key> keys(50);
  std::vector<Value> values(50);
  auto most = std::min<std::size_t>(50, found.size());
  CHECK(map.scan(from, 50, keys.data(), values.data()) == most);
  for (std::size_t i = 0; i < most; ++i) CHECK(keys[i] == found[i].first);
}

template <class Map, class Key, class Value>
void compare_key(const Map& map, const Reference<Key, Value>& reference, Key key) {
  auto count = reference.count(key);
  CHECK(map.count(key) == count && map.contains(key) == (count > 0));
  std::vector<Value> found;
  std::vector<Value> ranged;
  std::vector<Value> expected;
  map.for_each(key, [&found](const Value& value) { found.push_back(value); });
  for (const auto& item : map.equal_range(key)) {
    CHECK(item.key == key);
    ranged.push_back(item.value);
  }
  auto [first, last] = reference.equal_range(key);
  for (; first != last; ++first) expected.push_back(first->second);
  for (auto* values : {&found, &ranged, &expected}) std::sort(values->begin(), values->end());
  CHECK(found == expected && ranged == expected);
}

// Erases from both: all of a key, one, or those of some values.
template <class Map, class Key, class Value>
void erase(Map& map, Reference<Key, Value>& reference, Key key, int which) {
  auto [first, last] = reference.equal_range(key);
  if (which == 0) {
    CHECK(map.erase(key) == reference.erase(key));
  } else if (which == 1) {
    auto odd = [](Value value) { return static_cast<std::uint64_t>(value) % 2 == 1; };
    std::size_t erased = 0;
    while (first != last) {
      auto matches = odd(first->second);
      erased += matches;
      first = matches ? reference.erase(first) : std::next(first);
    }
    CHECK(map.erase_if(key, odd) == erased);
  } else {
    // Which one is erased is not defined: the one that is missing afterwards.
    std::vector<Value> before;
    std::vector<Value> after;
    map.for_each(key, [&](const Value& value) { before.push_back(value); });
    CHECK(map.erase_one(key) == (before.empty() ? 0 : 1));
    map.for_each(key, [&](const Value& value) { after.push_back(value); });
    for (auto value : after) before.erase(std::find(before.begin(), before.end(), value));
    CHECK(before.size() == (first == last ? 0 : 1));
    for (; !before.empty() && first->second != before[0]; ++first) CHECK(first != last);
    if (!before.empty()) reference.erase(first);
  }
}

template <class Key>
Key draw(int set, std::mt19937_64& random) {
  auto number = random();
  if constexpr (std::is_same_v<Key, double>) {
    return static_cast<double>(static_cast<std::int64_t>(number >> number % 60)) * 0.5 - 100;
  } else {
    switch (set) {
      case 0:
        return static_cast<Key>(number);
      case 1:
        return static_cast<Key>(number % 50);
      case 2:
        return static_cast<Key>(std::uint64_t{1} << number % 64);
      case 3:
        return static_cast<Key>(number % 2 == 0 ? number % 60 / 2 : kHighest - number % 60 / 2);
      default:
        return static_cast<Key>(number % 4 == 0 ? number >> number % 64 : 7);  // one is frequent
    }
  }
}

template <class Key, class Value>
void as_multimap(int set, const Configuration& configuration) {
  std::mt19937_64 random(static_cast<unsigned>(set));
  Multimap<Key, Value> map(configuration);
  Reference<Key, Value> reference;
  if (set % 2 == 0) {
    std::vector<Key> keys;
    std::vector<Value> values;
    for (int i = 0; i < 2'000; ++i) {
      keys.push_back(draw<Key>(set, random));
      values.push_back(static_cast<Value>(random()));
      reference.emplace(keys.back(), values.back());
    }
    map.build(keys.data(), values.data(), keys.size(), 2);
    compare(map, reference, keys[0]);
  }
  for (int i = 0; i < 8'000; ++i) {
    auto key = draw<Key>(set, random);
    if (random() % 3 != 0) {
      auto value = static_cast<Value>(random());
      map.append(key, value);
      reference.emplace(key, value);
    } else if (auto which = static_cast<int>(random() % 20); which != 0 || random() % 8 == 0) {
      erase(map, reference, key, which);
    }
    if (i % 16 == 0) compare_key(map, reference, draw<Key>(set, random));
    if (i % 2'000 == 0) compare(map, reference, draw<Key>(set, random));
  }
  compare(map, reference, draw<Key>(set, random));
  const Multimap<Key, Value> copy(map);
  compare(copy, reference, draw<Key>(set, random));
  Multimap<Key, Value> assigned(configuration);
  assigned.append(draw<Key>(set, random), {});
  assigned = copy;  // was deleted
  compare(assigned, reference, draw<Key>(set, random));
  while (!reference.empty()) {
    erase(map, reference, std::next(reference.begin(), reference.size() / 2)->first, 0);
  }
  compare(map, reference, draw<Key>(set, random));
}

void random_operations() {
  for (const auto& configuration :
       {multimap_configuration(), small_leaves(false), small_leaves(true)}) {
    for (int set = 0; set < 5; ++set) {
      as_multimap<std::uint64_t, std::uint64_t>(set, configuration);
      as_multimap<std::int32_t, std::uint32_t>(set, configuration);
    }
    as_multimap<double, std::uint64_t>(0, configuration);
  }
}

// One key with far more entries than a leaf has, among others: its leaves are sealed.
void many_entries_of_one_key() {
  constexpr std::uint32_t kEntries = 300'000;
  for (bool loaded : {false, true}) {
    Multimap<std::uint64_t, std::uint32_t> map;
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> values;
    for (std::uint32_t i = 0; i < kEntries; ++i) {
      keys.push_back(i % 10 == 0 ? i : 4'096);
      values.push_back(i);
    }
    if (loaded) {
      map.build(keys.data(), values.data(), keys.size());
    } else {
      map.append(keys.data(), values.data(), keys.size());
    }
    map.verify();
    auto statistics = map.statistics();
    CHECK(statistics.largest_change_keys <= kMostMovedKeys && statistics.size == kEntries);
    CHECK(statistics.keys[static_cast<std::size_t>(Leaf::log)] == kEntries);
    CHECK(map.count(4'096) == kEntries / 10 * 9 && map.count(4'100) == 1 && map.count(3) == 0);
    std::vector<bool> seen(kEntries);
    std::uint64_t before = 0;
    for (const auto& item : map) {
      CHECK(item.key >= before && !seen[item.value] && item.key == keys[item.value]);
      before = item.key;
      seen[item.value] = true;
    }
    CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
    auto even = [](std::uint32_t value) { return value % 2 == 0; };
    CHECK(map.erase_if(4'096, even) == kEntries / 10 * 4);
    for (int i = 0; i < 1'000; ++i) CHECK(map.erase_one(4'096) == 1);
    map.verify();
    Multimap<std::uint64_t, std::uint32_t> moved(std::move(map));
    CHECK(moved.erase(4'096) == kEntries / 10 * 5 - 1'000 && !moved.contains(4'096));
    moved.verify();
    CHECK(moved.size() == kEntries / 10);
    moved.clear();
    CHECK(moved.empty() && moved.begin() == moved.end());
  }
}

void sets_of_keys() {
  Multimap<std::uint64_t, Nothing> map;
  for (std::uint64_t i = 0; i < 10'000; ++i) map.append(i % 100 == 0 ? kHighest : i % 70, {});
  map.verify();
  CHECK(map.count(kHighest) == 100 && map.size() == 10'000);
  std::size_t counted = 0;
  for (std::uint64_t key = 0; key < 70; ++key) counted += map.count(key);
  CHECK(counted == 9'900);
}

void refuses_other_leaves() {
  Configuration hashed;
  auto text = thrown<std::invalid_argument>([&] { Multimap<int, int> map(hashed); });
  CHECK(text.find("hashed") != std::string::npos && text.find("log") != std::string::npos);
  Multimap<double, int> map;
  thrown<std::domain_error>([&] { map.append(std::nan(""), 1); });
  thrown<std::domain_error>([&] {
    std::array keys{1.0, std::nan(""), 2.0};
    map.append(keys.data(), std::array{1, 2, 3}.data(), keys.size());
  });
  CHECK(map.empty());
}

// Allocations until one fails; negative: none does.
long allocations_left = -1;

template <class T>
struct Failing {
  using value_type = T;
  Failing() = default;
  template <class U>
  Failing(const Failing<U>&) {}
  T* allocate(std::size_t count) {
    if (allocations_left == 0) throw std::bad_alloc();
    if (allocations_left > 0) --allocations_left;
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* memory, std::size_t count) { std::allocator<T>().deallocate(memory, count); }
  friend bool operator==(Failing, Failing) { return true; }
};

// Every allocation of every append fails once, and changes nothing.
void survives_failed_allocations() {
  Multimap<std::uint64_t, std::uint64_t, Exclusive, Failing<std::byte>> map(small_leaves(false));
  Reference<std::uint64_t, std::uint64_t> reference;
  std::mt19937_64 random(5);
  long failures = 0;
  for (int i = 0; i < 3'000; ++i) {
    auto key = draw<std::uint64_t>(4, random);
    auto value = random();
    for (allocations_left = 0;; allocations_left = ++failures % 7) {
      try {
        map.append(key, value);
        break;
      } catch (const std::bad_alloc&) {
        CHECK(map.size() == reference.size());
      }
    }
    allocations_left = -1;
    reference.emplace(key, value);
    if (i % 500 == 0) compare(map, reference, key);
  }
  compare(map, reference, std::uint64_t{0});
  CHECK(failures > 50);
}

void a_condition_that_throws() {
  Multimap<int, int> map;
  for (int i = 0; i < 10; ++i) map.append(1, i);
  const auto erase = [&] {
    map.erase_if(1, [](int value) {
      if (value == 5) throw std::runtime_error("five");
      return true;
    });
  };
  CHECK(!thrown<std::runtime_error>(erase).empty());
  map.verify();
  CHECK(map.size() == map.count(1) && map.size() < 10);
}

}  // namespace

int main() {
  a_condition_that_throws();
  random_operations();
  many_entries_of_one_key();
  sets_of_keys();
  refuses_other_leaves();
  survives_failed_allocations();
}
