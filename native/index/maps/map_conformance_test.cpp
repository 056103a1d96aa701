// What std::map requires of its users' point of view, of headrace's map: one suite for keys,
// values, leaves and sharing of several types, and random operations against std::map.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory_resource>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "index/maps/map.hpp"
#include "index/maps/multimap.hpp"
#include "index/memory/concurrent.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

// Codes of wider keys lost the high half.
#ifdef __SIZEOF_INT128__
__extension__ using WideKey = unsigned __int128;
static_assert(!CodedKey<WideKey> && CodedKey<std::uint64_t> && CodedKey<bool>);
#endif

template <class M>
concept StandardNames = requires {
  typename M::key_type;
  typename M::mapped_type;
  typename M::value_type;
  typename M::size_type;
  typename M::difference_type;
  typename M::key_compare;
  typename M::value_compare;
  typename M::allocator_type;
  typename M::reference;
  typename M::const_reference;
  typename M::iterator;
  typename M::const_iterator;
  typename M::reverse_iterator;
  typename M::const_reverse_iterator;
  typename M::node_type;
  typename M::insert_return_type;
};

// A map of a type under test, and its keys: ascending, from few bits, so that they repeat.
template <class KeyType, class ValueType, Leaf leaf_type, class Sharing = Exclusive>
struct Case {
  using Key = KeyType;
  using Value = ValueType;
  using Tested = Map<Key, Value, Sharing>;
  using Reference = std::map<Key, Value>;
  // Iterators see what changed since they read their leaf.
  static constexpr bool sees_changes = !Sharing::kShared;
  static constexpr Configuration configuration{.leaf = leaf_type,
                                               .fragment_keys = 32,
                                               .fragments = 64,
                                               .initial_fragments = 4,
                                               .leaf_keys = 32};
  static_assert(StandardNames<Tested>);
  static_assert(std::bidirectional_iterator<typename Tested::iterator>);
  static_assert(std::ranges::bidirectional_range<Tested>);
  static_assert(std::is_same_v<typename Tested::key_type, Key>);
  static_assert(std::is_nothrow_move_constructible_v<Tested>);

  static Key key(std::uint64_t i) {
    if constexpr (std::floating_point<Key>) return static_cast<Key>(i) / 4 - 50;
    if constexpr (std::is_signed_v<Key>) return static_cast<Key>(static_cast<Key>(i) - 100);
    return static_cast<Key>(i);
  }
  static Value value(std::uint64_t i) { return static_cast<Value>(i % 251); }
  // Entries with the keys 0, 2, 4, ... as numbers.
  static std::vector<std::pair<Key, Value>> even(std::uint64_t count) {
    std::vector<std::pair<Key, Value>> entries;
    for (std::uint64_t i = 0; i < count; ++i) entries.emplace_back(key(2 * i), value(i));
    return entries;
  }
  static Tested made(const std::vector<std::pair<Key, Value>>& entries) {
    return Tested(entries.begin(), entries.end(), configuration);
  }
};

template <class C>
void check_equal(const typename C::Tested& map, const typename C::Reference& reference) {
  map.codes().verify();
  CHECK(map.size() == reference.size() && map.empty() == reference.empty());
  const auto same = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second == b.second;
  };
  CHECK(std::equal(map.begin(), map.end(), reference.begin(), reference.end(), same));
  CHECK(std::equal(map.rbegin(), map.rend(), reference.rbegin(), reference.rend(), same));
}

template <class C>
void test_construction() {
  using M = typename C::Tested;
  M none(C::configuration);
  CHECK(none.empty() && none.begin() == none.end() && none.rbegin() == none.rend());
  CHECK(none.max_size() > 0 && none.find(C::key(1)) == none.end());
  M listed({{C::key(3), C::value(1)}, {C::key(1), C::value(2)}, {C::key(3), C::value(9)}},
           C::configuration);
  CHECK(listed.size() == 2 && listed.at(C::key(3)) == C::value(1));  // the first of equal keys
  M copy(listed);
  CHECK(copy == listed && !(copy != listed));
  copy = {{C::key(7), C::value(7)}, {C::key(7), C::value(8)}};
  CHECK(copy.size() == 1 && copy.at(C::key(7)) == C::value(7));
  M moved(std::move(copy));
  CHECK(moved.size() == 1 && listed < moved && moved > listed && listed <= listed);
  swap(moved, listed);
  CHECK(listed.size() == 1 && moved.size() == 2);
  moved.swap(listed);
  listed = moved;
  CHECK(listed == moved && (listed <=> moved) == 0);
  static_cast<void>(listed.get_allocator());
  const auto entries = C::even(3);
  const Map deduced(entries.begin(), entries.end());
  const Map deduced_from_list{entries[0], entries[1]};
  static_assert(std::is_same_v<decltype(deduced), const Map<typename C::Key, typename C::Value>>);
  CHECK(deduced.size() == 3 && deduced_from_list.size() == 2);
  const typename C::Reference reference(entries.begin(), entries.end());
  CHECK(Map(reference.begin(), reference.end()) == deduced);
  CHECK(listed.key_comp()(C::key(1), C::key(2)) &&
        listed.value_comp()(*listed.begin(), {C::key(9), {}}));
}

template <class C>
void test_insertion() {
  typename C::Tested map(C::configuration);
  const auto [at, fresh] = map.insert({C::key(5), C::value(1)});
  CHECK(fresh && at->first == C::key(5) && at->second == C::value(1));
  const auto [again, repeated] = map.insert({C::key(5), C::value(2)});
  CHECK(!repeated && again == at && again->second == C::value(1));
  CHECK(map.insert(map.end(), {C::key(4), C::value(3)})->first == C::key(4));
  CHECK(map.emplace(C::key(6), C::value(6)).second && !map.emplace(C::key(6), C::value(7)).second);
  CHECK(map.emplace_hint(map.begin(), C::key(6), C::value(8))->second == C::value(6));
  CHECK(map.try_emplace(C::key(7), C::value(7)).second && !map.try_emplace(C::key(7)).second);
  CHECK(map.try_emplace(map.end(), C::key(8))->second == typename C::Value{});
  const auto [assigned, was_new] = map.insert_or_assign(C::key(5), C::value(50));
  CHECK(!was_new && assigned->second == C::value(50) && map.at(C::key(5)) == C::value(50));
  CHECK(map.insert_or_assign(map.end(), C::key(9), C::value(9))->first == C::key(9));
  map.insert({{C::key(1), C::value(1)}, {C::key(9), C::value(0)}});
  const auto more = C::even(40);
  map.insert(more.begin(), more.end());
  CHECK(map.at(C::key(9)) == C::value(9) && map.at(C::key(78)) == C::value(39));
  map[C::key(90)] = C::value(3);
  map[C::key(90)] += C::value(4);
  map[C::key(91)] = map[C::key(90)];
  CHECK(map.at(C::key(91)) == C::value(7) && ++map[C::key(91)] == C::value(8));
  CHECK(map[C::key(91)]++ == C::value(8) && map[C::key(91)]-- == C::value(9));
  CHECK(map[C::key(92)] == typename C::Value{} && map.contains(C::key(92)));
  CHECK(!thrown<std::out_of_range>([&] { map.at(C::key(99)); }).empty());
}

template <class C>
void test_lookup() {
  const auto entries = C::even(45);
  const auto map = C::made(entries);
  const typename C::Reference reference(entries.begin(), entries.end());
  for (std::uint64_t i = 0; i < 92; ++i) {
    const auto key = C::key(i);
    const auto number = [&](const auto& at) { return std::distance(map.begin(), at); };
    const auto expected = [&](const auto& at) { return std::distance(reference.begin(), at); };
    CHECK(number(map.lower_bound(key)) == expected(reference.lower_bound(key)));
    CHECK(number(map.upper_bound(key)) == expected(reference.upper_bound(key)));
    CHECK(number(map.find(key)) == expected(reference.find(key)));
    CHECK(map.count(key) == reference.count(key) && map.contains(key) == reference.contains(key));
    const auto [first, last] = map.equal_range(key);
    CHECK(first == map.lower_bound(key) && last == map.upper_bound(key));
  }
}

template <class C>
void test_both_ways() {
  const auto entries = C::even(45);
  const auto map = C::made(entries);
  CHECK(std::prev(map.end())->first == entries.back().first);
  CHECK(map.rbegin()->first == entries.back().first && *map.crbegin() == entries.back());
  CHECK(std::next(map.cbegin(), 3)->first == entries[3].first);
  auto at = map.begin();
  std::size_t i = 0;
  Random random(1, 2);
  for (int step = 0; step < 2000; ++step) {  // to and fro, by copies that share what they read
    if (i < entries.size() && (i == 0 || random.below(3) != 0)) {
      const auto before = at++;
      CHECK(before->first == entries[i].first);
      ++i;
    } else {
      const auto after = at--;
      CHECK((after == map.end()) == (i == entries.size()));
      --i;
    }
    CHECK(i == entries.size() ? at == map.end() : *at == entries[i]);
  }
}

template <class C>
void test_erasing() {
  using M = typename C::Tested;
  const auto entries = C::even(45);
  auto map = C::made(entries);
  CHECK(map.erase(C::key(0)) == 1 && map.erase(C::key(1)) == 0);
  CHECK(map.erase(map.begin())->first == C::key(4));
  CHECK(map.erase(std::prev(map.end())) == map.end() && map.size() == 42);
  const auto next = map.erase(map.find(C::key(10)), map.find(C::key(20)));
  CHECK(next->first == C::key(20) && map.size() == 37 && !map.contains(C::key(18)));
  CHECK(map.erase(next, next) == next && map.size() == 37);
  for (auto at = map.begin(); at != map.end();) {  // while going on, and back
    at = static_cast<int>(at->second) % 2 == 0 ? map.erase(at) : ++at;
    if (at != map.begin() && at != map.end()) CHECK(std::prev(at)->first < at->first);
  }
  CHECK(std::ranges::none_of(
      map, [](const auto& entry) { return static_cast<int>(entry.second) % 2 == 0; }));
  const auto before = map.size();
  const auto gone =
      erase_if(map, [](const auto& entry) { return static_cast<int>(entry.second) % 3 == 0; });
  CHECK(gone > 0 && map.size() == before - gone);
  CHECK(std::ranges::none_of(
      map, [](const auto& entry) { return static_cast<int>(entry.second) % 3 == 0; }));
  map.erase(map.begin(), map.end());
  CHECK(map.empty() && map.begin() == map.end());
  M other = C::made(entries);
  other.clear();
  CHECK(other == map && other.insert(entries[3]).second && *other.begin() == entries[3]);
}

template <class C>
void test_nodes() {
  auto map = C::made(C::even(45));
  auto node = map.extract(C::key(8));
  CHECK(node && node.key() == C::key(8) && node.mapped() == C::value(4) && map.size() == 44);
  CHECK(map.extract(C::key(8)).empty());
  node.key() = C::key(9);
  node.mapped() = C::value(90);
  const auto outcome = map.insert(std::move(node));
  CHECK(outcome.inserted && outcome.position->first == C::key(9) && outcome.node.empty());
  auto first = map.extract(map.begin());
  first.key() = C::key(9);
  auto refused = map.insert(std::move(first));
  CHECK(!refused.inserted && refused.node.key() == C::key(9));
  CHECK(refused.position->second == C::value(90));
  CHECK(map.insert(map.end(), std::move(refused.node))->second == C::value(90));
  CHECK(!map.insert(typename C::Tested::node_type()).inserted);
  typename C::Tested source({{C::key(9), C::value(1)}, {C::key(11), C::value(2)}},
                            C::configuration);
  map.merge(source);
  CHECK(source.size() == 1 && source.contains(C::key(9)) && map.at(C::key(11)) == C::value(2));
  map.merge(map);
  map.merge(C::made(C::even(3)));
  CHECK(map.at(C::key(0)) == C::value(0));
}

// Random operations, in step with std::map, with iterators that are held over them.
template <class C>
void test_against_standard(std::uint64_t seed) {
  typename C::Tested map(C::configuration);
  typename C::Reference reference;
  Random random(seed, 0);
  auto held = map.begin();
  for (int i = 0; i < 6000; ++i) {
    const auto span = i / 1500 % 2 == 0 ? 180 : 60;
    const auto key = C::key(static_cast<std::uint64_t>(random.below(span)));
    const auto value = C::value(random.next() >> 32);
    switch (random.below(8)) {
      case 0:
      case 1: {
        const auto [at, fresh] = map.insert({key, value});
        const auto [expected, expected_fresh] = reference.insert({key, value});
        CHECK(fresh == expected_fresh && at->second == expected->second);
        held = at;
        break;
      }
      case 2:
        CHECK(map.insert_or_assign(key, value).second ==
              reference.insert_or_assign(key, value).second);
        break;
      case 3:
      case 4:
        CHECK(map.erase(key) == reference.erase(key));
        break;
      case 5: {
        const auto at = map.lower_bound(key);
        const auto expected = reference.lower_bound(key);
        CHECK((at == map.end()) == (expected == reference.end()));
        if (at == map.end()) break;
        CHECK(at->first == expected->first && at->second == expected->second);
        held = map.erase(at);
        reference.erase(expected);
        break;
      }
      case 6: {
        if (held == map.end()) break;
        if (!C::sees_changes) held = map.lower_bound(held->first);
        if (held == map.end()) break;
        const auto expected = reference.upper_bound(held->first);
        ++held;
        CHECK((held == map.end()) == (expected == reference.end()));
        CHECK(held == map.end() || held->first == expected->first);
        break;
      }
      default: {
        const auto expected =
            held == map.end() ? reference.end() : reference.lower_bound(held->first);
        if (expected == reference.begin()) break;
        if (!C::sees_changes) held = map.upper_bound(std::prev(expected)->first);
        CHECK((--held)->first == std::prev(expected)->first);
      }
    }
    if (i % 500 == 0) check_equal<C>(map, reference);
  }
  check_equal<C>(map, reference);
}

template <class C>
void test_all() {
  test_construction<C>();
  test_insertion<C>();
  test_lookup<C>();
  test_both_ways<C>();
  test_erasing<C>();
  test_nodes<C>();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) test_against_standard<C>(seed);
}

// Each with an explicit default constructor, none of these compiled, which do with std::map.
struct Maps {
  Map<int, int> map;
  CodeMap<int> codes;
  Multimap<int, int> multimap;
};
Map<int, int> no_entries() { return {}; }

void test_maps_of_braces() {
  const Maps maps{};
  const std::array<Map<int, int>, 2> several{};
  CHECK(maps.map == no_entries() && maps.codes.empty() && maps.multimap.empty());
  CHECK(several[0] == several[1]);
}

// Vectors of bool are none of its values: no member of such a map compiled.
template <Leaf leaf, class Sharing>
void test_values_of_bool() {
  Map<int, bool, Sharing> map({{3, true}, {1, false}, {2, true}}, {.leaf = leaf, .leaf_keys = 32});
  for (int key = 0; key < 5000; ++key) map.insert_or_assign(key, key % 3 == 0);
  for (int key = 0; key < 5000; key += 2) map.erase(key);
  map.codes().verify();
  const auto copy = map;
  CHECK(copy == map && copy.size() == 2500 && map.at(9) && !map.at(11));
  int next = 1;
  for (const auto& [key, value] : copy) {
    CHECK(key == next && value == (key % 3 == 0));
    next += 2;
  }
  const std::vector<std::pair<int, int>> counts{{1, 256}, {2, 0}, {3, 2}};  // 256 was false
  const Map<int, bool, Sharing> any(counts.begin(), counts.end(), {.leaf = leaf});
  CHECK(any.at(1) && !any.at(2) && any.at(3));
}

// Memory of its own, which has to be given back whole.
class CountedMemory final : public std::pmr::memory_resource {
 public:
  ~CountedMemory() override { CHECK(bytes_ == 0); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    auto* block = std::pmr::new_delete_resource()->allocate(bytes, alignment);
    bytes_ += bytes;
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    bytes_ -= bytes;
    std::pmr::new_delete_resource()->deallocate(block, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::size_t bytes_ = 0;
};

// Of std::pmr: erasing and moving did not compile. An assigned map keeps its own allocator, as it
// may live longer than the other's memory.
void test_memory_resources() {
  using Allocator = std::pmr::polymorphic_allocator<std::byte>;
  using Tested = Map<int, int, Exclusive, Allocator>;
  static_assert(std::is_nothrow_move_assignable_v<Map<int, int>>);
  static_assert(!std::is_nothrow_move_assignable_v<Tested>);
  CountedMemory lasting;
  Tested last(Configuration{}, &lasting);
  Multimap<int, int, Exclusive, Allocator> values(multimap_configuration(), &lasting);
  {
    CountedMemory temporary;
    Tested map(Configuration{}, &temporary);
    for (int key = 0; key < 100'000; ++key) map.insert({key, -key});
    for (int key = 0; key < 100'000; ++key) {
      if (key % 50 != 0) map.erase(key);
    }
    const Tested copy(map);
    CHECK(copy.get_allocator() == Allocator() && copy == map);
    last = map;
    CHECK(last.get_allocator() == Allocator(&lasting) && last == copy);
    last.clear();
    last = std::move(map);
    CHECK(last.get_allocator() == Allocator(&lasting) && last == copy);
    Tested moved(std::move(last));
    last = std::move(moved);
    CHECK(last.get_allocator() == Allocator(&lasting) && last == copy);
    Multimap<int, int, Exclusive, Allocator> appended(multimap_configuration(), &temporary);
    for (int i = 0; i < 200'000; ++i) appended.append(i % 100 == 0 ? i : 7, i);
    values = appended;
    CHECK(values.size() == appended.size() && values.count(7) == appended.count(7));
    values = std::move(appended);
  }
  CHECK(last.size() == 2'000 && last.at(50) == -50 && values.count(7) == 198'000);
  last.codes().verify();
  values.verify();
}

// As elements of containers that hand their allocator on, as those of std::pmr do: such did not
// compile, for want of constructors with an allocator.
void test_elements_of_containers() {
  using Allocator = std::pmr::polymorphic_allocator<std::byte>;
  using Tested = Map<int, int, Exclusive, Allocator>;
  CountedMemory memory;
  std::pmr::vector<Tested> maps(&memory);
  Tested map(Configuration{}, std::pmr::new_delete_resource());
  for (int key = 0; key < 1000; ++key) map.insert({key, -key});
  maps.emplace_back();
  maps.push_back(map);
  maps.push_back(std::move(map));
  maps.resize(10);
  for (const auto& element : maps) CHECK(element.get_allocator() == Allocator(&memory));
  CHECK(maps[0].empty() && maps[1] == maps[2] && maps[2].at(999) == -999 && maps[9].empty());
}

}  // namespace

int main() {
  test_memory_resources();
  test_elements_of_containers();
  test_maps_of_braces();
  test_values_of_bool<Leaf::hashed, Exclusive>();
  test_values_of_bool<Leaf::gapped, Exclusive>();
  test_values_of_bool<Leaf::log, Shared>();
  test_values_of_bool<Leaf::perfect, Exclusive>();
  test_all<Case<std::uint64_t, std::uint64_t, Leaf::hashed>>();
  test_all<Case<std::int32_t, std::int32_t, Leaf::gapped>>();
  test_all<Case<double, double, Leaf::log>>();
  test_all<Case<std::int16_t, std::uint16_t, Leaf::perfect>>();
  test_all<Case<std::uint64_t, std::uint64_t, Leaf::hashed, Shared>>();
  test_all<Case<float, std::uint32_t, Leaf::gapped, Shared>>();
}
