// The map with std::map's interface, and its failures: an allocation that fails at every place, and
// operations drawn from bytes, in libFuzzer's form.
#include "index/maps/map.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "index/maps/index_fuzz.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

template <class Key>
void compare(const Map<Key, int>& map, const std::map<Key, int>& reference) {
  map.codes().verify();
  CHECK(map.size() == reference.size());
  auto at = map.begin();
  for (const auto& [key, value] : reference) {
    CHECK(at->first == key && (*at).second == value);
    ++at;
  }
  CHECK(at == map.end());
}

template <class Key>
void test_keys(const std::vector<Key>& keys) {
  Map<Key, int> map;
  std::map<Key, int> reference;
  int value = 0;
  for (const auto key : keys) {
    CHECK(map.insert({key, ++value}).second == reference.insert({key, value}).second);
  }
  compare(map, reference);
  for (const auto key : keys) {
    CHECK(map.at(key) == reference.at(key) && *map.get_if(key) == reference.at(key));
    const auto found = map.lower_bound(key);
    CHECK(found->first == key && found == map.find(key));
    const auto next = map.upper_bound(key);
    const auto expected = reference.upper_bound(key);
    CHECK((next == map.end()) == (expected == reference.end()));
    CHECK(next == map.end() || next->first == expected->first);
  }
  const Map<Key, int> other(reference.begin(), reference.end());
  CHECK(map == other);
  // Erasing while going on.
  for (auto at = map.begin(); at != map.end();) {
    const auto key = at->first;
    reference.erase(key);
    at = map.erase(at);
    CHECK((at == map.end()) == reference.empty());
    CHECK(at == map.end() || at->first == reference.begin()->first);
  }
  compare(map, reference);
}

void test_interface() {
  test_keys<std::uint64_t>({5, 0, std::numeric_limits<std::uint64_t>::max(), 7, 5, 1});
  test_keys<std::int64_t>({-1, 0, std::numeric_limits<std::int64_t>::min(), 9, -70});
  test_keys<std::int8_t>({-1, 0, -128, 127});
  test_keys<double>({0.0, -0.0, -1.5, 1e300, -std::numeric_limits<double>::infinity(), 5e-324});
  test_keys<float>({1.5F, -2.25F, 0.0F});
  Map<double, int> map{{1.0, 1}, {2.0, 2}};
  CHECK(!map.insert_or_assign(2.0, 3).second && map.at(2.0) == 3 && map.count(4.0) == 0);
  CHECK(!thrown<std::domain_error>([&] { map.insert({std::nan(""), 1}); }).empty());
  CHECK(!thrown<std::out_of_range>([&] { map.at(4.0); }).empty());
  auto first = map.begin();
  auto copy = first++;
  CHECK(copy->first == 1.0 && first->first == 2.0);
  map = Map<double, int>{};
  CHECK(map.empty() && map.begin() == map.end());
}

// Values of some kilobytes: 512 of them were on the stack, more than it has. Of more than 16 kB an
// array had no elements, which -Wpedantic refuses.
template <std::size_t bytes>
void test_large_values() {
  struct Page {
    std::byte content[bytes];
  };
  Map<int, Page> map;
  for (int key = 0; key < 20; ++key) map.insert({key, Page{}});
  CHECK(erase_if(map, [](const auto& entry) { return entry.first % 2 == 0; }) == 10);
  CHECK(map.size() == 10 && map.begin()->first == 1);
  map.codes().verify();
}

// Leaves of the most keys, loaded sparsely, that fill up: what leads to a leaf counts its memory,
// and no change moves more keys than it may.
template <class Value>
void test_largest_leaves(Leaf leaf) {
  const Configuration configuration{
      .leaf = leaf, .fragment_keys = kMostFragmentKeys, .fill = kLeastFill};
  for (std::uint64_t base = 0; base < 20; base += leaf == Leaf::log ? 1 : 7) {
    std::vector<std::pair<std::uint64_t, Value>> entries(kMostMovedKeys);
    for (std::uint64_t i = 0; i < entries.size(); ++i) entries[i] = {base + (i << 10), Value{i}};
    Map<std::uint64_t, Value> map(entries.begin(), entries.end(), configuration);
    CHECK(map.codes().statistics().leaf_bytes >= entries.size() * sizeof(entries[0]));
    if (base % 7 == 0) {
      for (std::uint64_t i = 0; i < 200'000; ++i) map.insert({i * 64 + 1 + i * i % 61, Value{i}});
      CHECK(map.codes().statistics().largest_change_keys <= kMostMovedKeys);
      map.codes().verify();
    }
    map.clear();
    CHECK(map.codes().statistics().leaf_bytes == 0);
  }
}

void test_iterators_at_erased_keys() {
  Map<std::uint64_t, int> map;
  const auto highest = std::numeric_limits<std::uint64_t>::max();
  for (std::uint64_t key : {1, 2, 3, 4, 5}) map.insert({key, 0});
  map.insert({highest, 0});
  auto at = map.find(3);
  const auto copy = at;
  map.erase(3);
  CHECK((++at)->first == 4 && copy->first == 3);
  map.erase(4);
  CHECK((at++)->first == 4 && at->first == 5);
  auto last = map.find(highest);
  map.erase(highest);
  CHECK((last++)->first == highest && last == map.end());
}

// Counts down allocations of all copies; the one at zero fails.
long allocations_left = -1;  // negative: none fails

template <class T>
struct Failing {
  using value_type = T;
  Failing() = default;
  template <class U>
  Failing(const Failing<U>&) {}
  T* allocate(std::size_t count) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* block, std::size_t count) { std::allocator<T>().deallocate(block, count); }
  friend bool operator==(const Failing&, const Failing&) { return true; }
};

// Has no more than `limit_bytes`.
std::size_t used_bytes = 0;
std::size_t limit_bytes = ~std::size_t{0};

template <class T>
struct Limited {
  using value_type = T;
  Limited() = default;
  template <class U>
  Limited(const Limited<U>&) {}
  T* allocate(std::size_t count) {
    if (used_bytes + count * sizeof(T) > limit_bytes) throw std::bad_alloc();
    used_bytes += count * sizeof(T);
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* block, std::size_t count) {
    used_bytes -= count * sizeof(T);
    std::allocator<T>().deallocate(block, count);
  }
  friend bool operator==(const Limited&, const Limited&) { return true; }
};

using FailingMap = CodeMap<std::uint64_t, Exclusive, Failing<std::byte>>;
using Reference = std::map<std::uint64_t, std::uint64_t>;

void compare(const FailingMap& map, const Reference& reference) {
  map.verify();
  CHECK(map.size() == reference.size());
  auto at = map.begin();
  for (const auto& [code, value] : reference) {
    CHECK(at.valid() && at.code() == code && at.value() == value);
    at.next();
  }
}

// Runs `operation`; if its allocation fails, the map must be as before, and the next try succeeds.
template <class Operation>
void attempt(const FailingMap& map, const Reference& reference, const Operation& operation) {
  try {
    operation();
  } catch (const std::bad_alloc&) {
    compare(map, reference);
    operation();
  }
}

void operate_once(FailingMap& map, Reference& reference, std::mt19937_64& engine, int i) {
  const auto code = engine() % 3 == 0 ? engine() : engine() % 4000;
  if (i % 500 == 250) {
    std::vector<std::uint64_t> codes;
    for (const auto& entry : reference) codes.push_back(entry.first);
    const std::vector<std::uint64_t> values(codes.rbegin(), codes.rend());
    attempt(map, reference, [&] { map.build(codes.data(), values.data(), codes.size(), 2); });
    for (std::size_t at = 0; at < codes.size(); ++at) reference[codes[at]] = values[at];
  } else if (i % 3 == 0 && !reference.empty()) {
    const auto erased = reference.begin()->first;
    attempt(map, reference, [&] { CHECK(map.erase(erased)); });
    reference.erase(erased);
  } else {
    attempt(map, reference, [&] { map.insert_or_assign(code, code); });
    reference[code] = code;
  }
}

// Every allocation of a run of operations fails in turn, all of the first and then a sample.
void test_countdown(Leaf leaf) {
  const Configuration configuration{
      .leaf = leaf, .fragment_keys = 16, .fragments = 64, .initial_fragments = 4, .leaf_keys = 16};
  for (long fail_at = 0;; fail_at += 1 + fail_at / 64) {
    FailingMap map(configuration);
    Reference reference;
    std::mt19937_64 engine(3);
    allocations_left = fail_at;
    for (int i = 0; i < 1000; ++i) operate_once(map, reference, engine, i);
    const bool all_tried = allocations_left >= 0;
    allocations_left = -1;
    compare(map, reference);
    if (all_tried) return;
  }
}

// A move of an iterator that lacks memory for a run of entries leaves it where it is.
void test_failed_moves() {
  Map<int, int, Exclusive, Failing<std::byte>> map;
  for (int i = 0; i < 1000; ++i) map.insert({2 * i, i});
  auto at = map.find(500);
  allocations_left = 0;
  CHECK(!thrown<std::bad_alloc>([&] { ++at; }).empty() && at->first == 500);
  allocations_left = 0;
  CHECK(!thrown<std::bad_alloc>([&] { --at; }).empty() && at->first == 500);
  allocations_left = -1;
  CHECK((++at)->first == 502 && (--at)->first == 500 && (--at)->first == 498);
}

// Values of the map itself, in their place: they move where room is made for another entry.
void test_own_values(Leaf leaf) {
  CodeMap<std::uint64_t> map({.leaf = leaf, .fragment_keys = 32, .leaf_keys = 32});
  Reference reference;
  for (std::uint64_t code = 0; code < 10; ++code) reference[code << 40] = code;
  for (const auto& [code, value] : reference) map.insert(code, value);
  std::mt19937_64 engine(5);
  for (int i = 0; i < 5000; ++i) {
    const auto code = engine() >> 20;
    const auto from = reference.upper_bound(engine() >> 20);
    const auto [first, value] = from == reference.end() ? *reference.begin() : *from;
    if (i % 2 == 0) {
      map.insert_or_assign(code, *map.find(first));
      reference.insert_or_assign(code, value);
    } else {
      std::uint64_t stored = 0;
      map.find_or_insert(code, *map.find(first), stored);
      CHECK(stored == reference.try_emplace(code, value).first->second);
    }
  }
  for (const auto& [code, value] : reference) CHECK(*map.find(code) == value);
  map.verify();
}

// A copy put the entries of log leaves in order: a pointer to a value had another one's, and a
// thread that looked keys up meanwhile missed some.
void test_copies_only_read() {
  Map<int, int> map({.leaf = Leaf::log});
  for (int key = 100; key > 0; --key) map.insert({key, key});
  const int* const value = map.get_if(70);
  const auto copy = map;
  CHECK(map.get_if(70) == value && *value == 70 && copy == map);
}

// Erasing and clearing give memory back, and a small map takes little.
void test_memory_comes_back() {
  using Limit = CodeMap<std::uint64_t, Exclusive, Limited<std::byte>>;
  const auto before = used_bytes;
  Limit map;
  for (std::uint64_t i = 0; i < 100; ++i) map.insert(i * 7919, i);
  CHECK(map.statistics().bytes == used_bytes - before && used_bytes - before <= 6'400);
  map.clear();
  CHECK(used_bytes == before && map.statistics().bytes == 0);
  std::vector<std::uint64_t> codes(1'000'000);
  std::iota(codes.begin(), codes.end(), 0);
  for (const bool scattered : {false, true}) {
    map.build(codes.data(), codes.data(), codes.size());
    map.erase_range(0, codes.size(), [scattered](std::uint64_t code, std::uint64_t) {
      return scattered ? code % 100 != 0 : code >= 10'000;
    });
    map.verify();
    CHECK(map.size() == 10'000);
    CHECK(map.statistics().bytes <= 3 * Limit(map).statistics().bytes);
    CHECK(map.statistics().largest_change_keys <= kMostMovedKeys);
  }
  map.build(codes.data(), codes.data(), codes.size());
  map.erase(codes.data(), 800'000);
  map.shrink_to_fit();
  map.verify();
  std::uint64_t least = 0;
  CHECK(map.size() == 200'000 && map.min(least) && least == 800'000);
  CHECK(map.statistics().bytes <= 2 * Limit(map).statistics().bytes);
}

// Of a limited amount of memory, as much can be used after a bulk load that failed as before it.
void test_failed_build() {
  const auto inserted = [](bool fails) {
    CodeMap<std::uint64_t, Exclusive, Limited<std::byte>> map;
    map.insert(1, 1);
    limit_bytes = used_bytes + (8U << 20);
    std::vector<std::uint64_t> codes(1'000'000);
    std::iota(codes.begin(), codes.end(), 0);
    if (fails) {
      CHECK(!thrown<std::bad_alloc>([&] {
               map.build(codes.data(), codes.data(), codes.size());
             }).empty());
    }
    std::size_t count = 0;
    try {
      for (; count < codes.size(); ++count) map.insert(count * 7 + 3, count);
    } catch (const std::bad_alloc&) {
      map.verify();
    }
    limit_bytes = ~std::size_t{0};
    return count;
  };
  const auto whole = inserted(false);
  CHECK(whole > 200'000 && inserted(true) * 10 > whole * 9);
}

// A loop in place of libFuzzer, for compilers without it.
void test_fuzz() {
  std::mt19937_64 engine(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint8_t> bytes(engine() % 4000);
    for (auto& byte : bytes) {
      byte = static_cast<std::uint8_t>(engine() % 4 == 0 ? engine() : engine() % 4);
    }
    fuzz_map(bytes.data(), bytes.size());
  }
}

}  // namespace

int main() {
  test_interface();
  test_large_values<16'368>();
  test_large_values<20'000>();
  struct Large {
    std::uint64_t words[8];
  };
  test_largest_leaves<Large>(Leaf::log);
  test_largest_leaves<std::uint64_t>(Leaf::log);
  test_largest_leaves<std::uint64_t>(Leaf::hashed);
  for (const auto leaf : {Leaf::hashed, Leaf::log, Leaf::gapped, Leaf::perfect}) {
    test_own_values(leaf);
  }
  test_iterators_at_erased_keys();
  test_copies_only_read();
  test_failed_moves();
  test_failed_build();
  test_memory_comes_back();
  for (const auto leaf : {Leaf::hashed, Leaf::log, Leaf::gapped, Leaf::perfect}) {
    test_countdown(leaf);
  }
  test_fuzz();
}
