// The map against std::map: the same operations on random and adversarial keys, all invariants
// checked on the way.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "index/maps/code.hpp"
#include "index/maps/code_map.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using Codes = std::vector<std::uint64_t>;
constexpr std::uint64_t kHighest = ~std::uint64_t{0};

std::mt19937_64 engine(18);  // NOLINT: the same sequence in every run

std::uint64_t below(std::uint64_t bound) { return engine() % bound; }

// Sets of keys that mislead models: from smooth to both ends of the range at once.
struct KeySet {
  const char* name;
  std::uint64_t (*draw)();
};

const KeySet kKeySets[] = {
    {"uniform", [] { return engine(); }},
    {"small", [] { return below(3000); }},
    {"powers of two", [] { return std::uint64_t{1} << below(64); }},
    {"near powers of two", [] { return (std::uint64_t{1} << below(64)) + below(50) - 25; }},
    {"log-spread", [] { return engine() >> below(64); }},
    {"two-ended", [] { return below(2) == 0 ? below(2000) : kHighest - below(2000); }},
    {"dense runs", [] { return (below(8) << 60) + below(800); }},
    {"neighbours above 2^53", [] { return (std::uint64_t{1} << 62) + below(4000); }},
    {"nested clusters",
     [] {
       std::uint64_t code = 0;
       for (int i = 0; i < 16; ++i) code = code << 4 | (below(3) == 0 ? below(16) : 7);
       return code;
     }},
    {"one gap", [] { return below(20) == 0 ? engine() : (kHighest / 3) + below(1 << 20); }},
};

using Reference = std::map<std::uint64_t, std::uint64_t>;

template <class Map>
void compare(const Map& map, const Reference& reference) {
  map.verify();
  CHECK(map.size() == reference.size());
  auto cursor = map.begin();
  for (const auto& [code, value] : reference) {
    CHECK(cursor.valid() && cursor.code() == code && cursor.value() == value);
    cursor.next();
  }
  CHECK(!cursor.valid());
  std::uint64_t code = 0;
  CHECK(map.min(code) == !reference.empty());
  CHECK(reference.empty() || code == reference.begin()->first);
  CHECK(map.max(code) == !reference.empty());
  CHECK(reference.empty() || code == reference.rbegin()->first);
}

template <class Map>
void check_scan(const Map& map, const Reference& reference, std::uint64_t from) {
  Codes codes(100);
  Codes values(100);
  const auto most = below(100);
  const auto count = map.scan(from, most, codes.data(), values.data());
  auto expected = reference.lower_bound(from);
  for (std::size_t i = 0; i < count; ++i, ++expected) {
    CHECK(expected->first == codes[i] && expected->second == values[i]);
  }
  CHECK(count == most || expected == reference.end());
}

template <class Map>
void operate(Map& map, Reference& reference, std::uint64_t code, std::uint64_t value) {
  const auto at = reference.find(code);
  const bool there = at != reference.end();
  std::uint64_t found = 0;
  switch (below(8)) {
    case 0:
      CHECK(map.erase(code) == there);
      if (there) reference.erase(at);
      break;
    case 1:
      CHECK(map.get(code, found) == there);
      CHECK(!there || found == at->second);
      break;
    case 2:
      CHECK(map.update(code, value) == there);
      if (there) at->second = value;
      break;
    case 3:
      check_scan(map, reference, code);
      break;
    case 4:
    case 5:
      CHECK(map.insert(code, value) == !there);
      if (!there) reference.emplace(code, value);
      break;
    default:
      CHECK(map.insert_or_assign(code, value) == !there);
      reference[code] = value;
  }
}

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  for (const auto leaf : {Leaf::hashed, Leaf::log, Leaf::gapped, Leaf::perfect}) {
    all.push_back({.leaf = leaf});
    all.push_back({.leaf = leaf,
                   .fragment_keys = 16,
                   .fragments = 64,
                   .initial_fragments = 4,
                   .fingerprints = false,
                   .leaf_keys = 64,
                   .fill = 0.95});
  }
  return all;
}

void test_random_operations() {
  for (const auto& configuration : configurations()) {
    for (const auto& keys : kKeySets) {
      CodeMap<std::uint64_t> map(configuration);
      Reference reference;
      if (below(2) == 0) {
        Codes codes;
        for (int i = 0; i < 3000; ++i) codes.push_back(keys.draw());
        map.build(codes.data(), codes.data(), codes.size(), 2);
        for (const auto code : codes) reference[code] = code;
        compare(map, reference);
      }
      for (int i = 0; i < 12'000; ++i) operate(map, reference, keys.draw(), engine());
      compare(map, reference);
      while (!reference.empty()) {  // until nothing remains
        const auto code = reference.lower_bound(std::min(keys.draw(), reference.rbegin()->first));
        CHECK(map.erase(code->first));
        reference.erase(code);
        if (below(500) == 0) compare(map, reference);
      }
      compare(map, reference);
    }
  }
}

void test_orders_of_insertion() {
  for (const auto& configuration : configurations()) {
    for (const auto& keys : kKeySets) {
      Codes codes;
      for (int i = 0; i < 4000; ++i) codes.push_back(keys.draw());
      codes.insert(codes.end(), {0, 1, kHighest, kHighest - 1});
      for (int order = 0; order < 3; ++order) {
        if (order == 0) std::sort(codes.begin(), codes.end());
        if (order == 1) std::reverse(codes.begin(), codes.end());
        if (order == 2) std::shuffle(codes.begin(), codes.end(), engine);
        CodeMap<std::uint64_t> map(configuration);
        Reference reference;
        for (std::size_t i = 0; i < codes.size(); ++i) {
          CHECK(map.insert_or_assign(codes[i], i) == !reference.contains(codes[i]));
          reference[codes[i]] = i;
        }
        compare(map, reference);
      }
    }
  }
}

// Depth is bounded by the number of keys, whatever their order: counted, and in memory moved.
void test_bounds() {
  const auto check = [](const char* name, auto&& code_of, std::size_t count) {
    CodeMap<std::uint64_t> map;
    for (std::size_t i = 0; i < count; ++i) map.insert(code_of(i), i);
    map.verify();
    const auto statistics = map.statistics();
    CHECK(map.size() == count);
    if (statistics.depth > depth_bound(2 * count / map.configuration().fragment_keys) + 1 ||
        statistics.bytes > 40 * count + 100'000 ||
        statistics.largest_change_keys > kMostMovedKeys) {
      std::fprintf(stderr, "%s: depth %zu, %.1f bytes a key, %zu keys moved at once\n", name,
                   statistics.depth, double(statistics.bytes) / double(count),
                   std::size_t{statistics.largest_change_keys});
      std::abort();
    }
  };
  check("ascending", [](std::size_t i) { return i; }, 300'000);
  check("descending", [](std::size_t i) { return kHighest - i; }, 300'000);
  check("ascending, wide", [](std::size_t i) { return i << 40; }, 300'000);
  check(
      "from the middle", [](std::size_t i) { return (kHighest / 2) + (i % 2 ? i : -i); }, 300'000);
  check(
      "into ever smaller gaps", [](std::size_t i) { return (kHighest >> (i / 6000)) - i; },
      300'000);
  check(
      "bits reversed",
      [](std::size_t i) {
        std::uint64_t code = 0;
        for (int bit = 0; bit < 64; ++bit) code |= (i >> bit & 1) << (63 - bit);
        return code;
      },
      300'000);
}

// Batches are the single operations, in turn; leaves are converted while they go on.
void test_batches_and_conversion() {
  const auto all = configurations();
  CodeMap<std::uint64_t> map;
  Reference reference;
  std::uint64_t cursor = 0;
  for (int round = 0; round < 200; ++round) {
    const auto& keys = kKeySets[round % std::size(kKeySets)];
    Codes codes(below(300));
    for (auto& code : codes) code = keys.draw();
    Codes values(codes.size());
    for (auto& value : values) value = engine();
    std::size_t fresh = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      fresh += !reference.contains(codes[i]);
      reference[codes[i]] = values[i];
    }
    CHECK(map.insert_or_assign(codes.data(), values.data(), codes.size()) == fresh);
    for (auto& code : codes) code = below(2) == 0 ? code : keys.draw();
    Codes out(codes.size());
    const auto found = std::make_unique<bool[]>(codes.size());
    const auto hits = map.get(codes.data(), codes.size(), out.data(), found.get());
    CHECK(hits ==
          static_cast<std::size_t>(std::count(found.get(), found.get() + codes.size(), true)));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto at = reference.find(codes[i]);
      CHECK(found[i] == (at != reference.end()) && (!found[i] || out[i] == at->second));
    }
    codes.resize(codes.size() / 3);
    std::size_t erased = 0;
    for (const auto code : codes) erased += reference.erase(code);
    CHECK(map.erase(codes.data(), codes.size()) == erased);
    if (round % 5 == 0) map.configure(all[below(all.size())]);
    if (!map.convert(cursor, 1 + below(5000))) cursor = 0;
    check_scan(map, reference, keys.draw());
    if (round % 10 == 0) compare(map, reference);
  }
  for (const auto& configuration : all) {  // in whole
    map.configure(configuration);
    for (cursor = 0; map.convert(cursor, 1000);) continue;
    compare(map, reference);
    const auto statistics = map.statistics();
    CHECK(statistics.keys[static_cast<std::size_t>(configuration.leaf)] == map.size());
  }
}

// A scan remembers the orders of hashed leaves, until they change: several threads may scan, and
// what is remembered is counted, and goes with its leaf.
void test_orders_of_leaves() {
  Codes codes(20'000);
  for (auto& code : codes) code = engine();
  CodeMap<std::uint64_t> map;
  map.build(codes.data(), codes.data(), codes.size());
  std::sort(codes.begin(), codes.end());
  const auto scan_all = [&codes](const CodeMap<std::uint64_t>& scanned) {
    Codes found(100);
    Codes values(100);
    for (std::size_t i = 0; i + 100 <= codes.size(); i += 50) {
      CHECK(scanned.scan(codes[i], 100, found.data(), values.data()) == 100);
      CHECK(std::equal(found.begin(), found.end(), codes.begin() + static_cast<long>(i)));
      CHECK(found == values);
    }
  };
  const auto unscanned_bytes = map.statistics().bytes;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(scan_all, std::cref(map));
  for (auto& thread : threads) thread.join();
  map.verify();
  const auto scanned_bytes = map.statistics().bytes;
  CHECK(scanned_bytes > unscanned_bytes && scanned_bytes < unscanned_bytes + 4 * codes.size());
  CodeMap<std::uint64_t> moved(std::move(map));
  scan_all(moved);
  CHECK(moved.statistics().bytes == scanned_bytes);
  for (const auto code : codes) CHECK(!moved.insert_or_assign(code, code));  // moves no entry
  CHECK(moved.statistics().bytes == scanned_bytes);
  for (const auto code : codes) {
    CHECK(moved.erase(code));
    if (below(100) == 0) moved.verify();
  }
  moved.verify();
  moved.clear();
  CHECK(moved.statistics().bytes == 0);
}

// Of a leaf that keys in ascending order have filled, few are moved to the next one.
void test_appends_move_few_keys() {
  for (const std::uint64_t step : {1, 1000}) {
    CodeMap<std::uint64_t> map;
    for (std::uint64_t i = 0; i < 100'000; ++i) map.insert(i * step, i);
    map.verify();
    const auto statistics = map.statistics();
    CHECK(statistics.moved_keys < 2 * map.size());
    CHECK(statistics.bytes < 28 * map.size());
  }
}

// Keys that come in bursts, with pauses far longer than a burst: the last node had no slots for the
// next burst, which became a subtree of its last leaf, and so did the one after that.
void test_bursts_make_no_path_longer() {
  constexpr std::uint64_t kBurst = 3000;
  for (const auto leaf : {Leaf::hashed, Leaf::log}) {
    CodeMap<std::uint64_t> map({.leaf = leaf});
    std::vector<std::uint64_t> codes;
    for (std::uint64_t code = 1 << 20; codes.size() < 60 * kBurst; code += 1 + below(4)) {
      if (codes.size() % kBurst == 0) code += (1 << 20) + below(1 << 23);
      codes.push_back(code);
    }
    const auto half = codes.size() / 2;
    map.build(codes.data(), codes.data(), half);
    for (std::size_t i = half; i < codes.size(); ++i) {
      CHECK(map.insert(codes[i], codes[i]));
      if (i % 9973 == 0) map.verify();
    }
    map.verify();
    for (const auto code : codes) CHECK(map.find(code) != nullptr && *map.find(code) == code);
    const auto statistics = map.statistics();
    CHECK(statistics.depth <= 4);
    CHECK(statistics.moved_keys < map.size());
    CHECK(statistics.bytes < 32 * map.size());
  }
}

// Bursts of several series by turns, in the middle of a map; and pauses that become longer.
void test_bursts_beside_other_keys() {
  CodeMap<std::uint64_t> map;
  std::map<std::uint64_t, std::uint64_t> expected;
  std::uint64_t next[] = {1ULL << 61, 1ULL << 62, 3ULL << 61};
  for (int turn = 0; turn < 40; ++turn) {
    for (auto& code : next) {
      code += std::uint64_t{1} << (turn * 55 / 40);
      for (int i = 0; i < 700; ++i, code += 1 + below(9)) {
        CHECK(map.insert(code, code ^ 1) == expected.emplace(code, code ^ 1).second);
      }
    }
    map.verify();
  }
  CHECK(map.size() == expected.size());
  for (const auto& [code, value] : expected) {
    CHECK(map.find(code) != nullptr && *map.find(code) == value);
  }
  CHECK(map.statistics().depth <= 10);
}

template <class Value>
void test_values(Value (*of)(std::uint64_t)) {
  CodeMap<Value> map;
  Codes codes;
  for (int i = 0; i < 5000; ++i) codes.push_back(engine() >> below(64));
  std::vector<Value> values;
  for (const auto code : codes) values.push_back(of(code));
  map.build(codes.data(), values.data(), codes.size() / 2);
  for (std::size_t i = codes.size() / 2; i < codes.size(); ++i) map.insert(codes[i], values[i]);
  map.verify();
  for (const auto code : codes) {
    Value found{};
    CHECK(map.get(code, found) && found == of(code));
    CHECK(map.find(code) != nullptr);
  }
  const CodeMap<Value> copy(map);
  copy.verify();
  CHECK(copy.size() == map.size());
  for (const auto code : codes) map.erase(code);
  CHECK(map.empty());
  map.verify();
}

struct Wide {
  std::uint32_t a, b, c;
  friend bool operator==(const Wide&, const Wide&) = default;
};

void test_codes() {
  CHECK(encode(-1) < encode(0) && encode(0) < encode(1));
  CHECK(encode(-1.5) < encode(-0.0) && encode(-0.0) == encode(0.0));
  CHECK(encode(1e-320) > encode(0.0) && encode(-1e300) < encode(-1e299));
  for (const double key : {-1e300, -1.0, 0.0, 5e-324, 3.25, 1e308}) {
    CHECK(decode<double>(encode(key)) == key);
  }
  for (const std::int64_t key : {INT64_MIN, std::int64_t{-1}, std::int64_t{0}, INT64_MAX}) {
    CHECK(decode<std::int64_t>(encode(key)) == key);
  }
  CHECK(!thrown<std::domain_error>([] { encode(std::nan("")); }).empty());
}

void test_configuration() {
  Configuration wrong;
  wrong.fill = std::nan("");
  const auto text = thrown<std::invalid_argument>([&] { CodeMap<std::uint64_t> map(wrong); });
  CHECK(text == "index configuration: fill is nan, needs 0.3 to 0.98");
  Configuration odd;
  odd.leaf_keys = 1000;
  CHECK(!thrown<std::invalid_argument>([&] { odd.validate(); }).empty());
}

}  // namespace

int main() {
  test_codes();
  test_configuration();
  test_random_operations();
  test_orders_of_insertion();
  test_bounds();
  test_batches_and_conversion();
  test_orders_of_leaves();
  test_appends_move_few_keys();
  test_bursts_make_no_path_longer();
  test_bursts_beside_other_keys();
  test_values<std::uint64_t>([](std::uint64_t code) { return ~code; });
  test_values<std::uint32_t>([](std::uint64_t code) { return static_cast<std::uint32_t>(code); });
  test_values<std::uint8_t>([](std::uint64_t code) { return static_cast<std::uint8_t>(code); });
  test_values<Nothing>([](std::uint64_t) { return Nothing{}; });
  test_values<Wide>(
      [](std::uint64_t code) { return Wide{1, static_cast<std::uint32_t>(code), 3}; });
}
