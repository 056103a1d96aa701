// Maps with leaves placed by perfect hash functions, alone and beside hashed leaves, against
// std::map.
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "index/configuration.hpp"
#include "index/maps/code_map.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using Reference = std::map<std::uint64_t, std::uint64_t>;
constexpr auto kHighest = ~std::uint64_t{0};

Configuration perfect_leaves(std::uint32_t leaf_keys) {
  Configuration configuration;
  configuration.leaf = Leaf::perfect;
  configuration.leaf_keys = leaf_keys;
  return configuration;
}

void compare(const CodeMap<std::uint64_t>& map, const Reference& reference, std::uint64_t from) {
  map.verify();
  CHECK(map.size() == reference.size());
  auto cursor = map.lower_bound(from);
  for (auto at = reference.lower_bound(from); at != reference.end(); ++at, cursor.next()) {
    CHECK(cursor.valid() && cursor.code() == at->first && cursor.value() == at->second);
  }
  CHECK(!cursor.valid());
}

std::uint64_t draw(int set, std::mt19937_64& random) {
  switch (set) {
    case 0:
      return random();
    case 1:
      return random() % 5'000;
    case 2:
      return random() >> random() % 64;
    case 3:
      return random() % 2 == 0 ? random() % 2'000 : kHighest - random() % 2'000;
    default:
      return std::uint64_t{1} << random() % 64;
  }
}

// Half of the operations insert; the others erase, update or find.
void operate(CodeMap<std::uint64_t>& map, Reference& reference, std::uint64_t code,
             std::uint64_t value) {
  bool there = reference.contains(code);
  switch (value % 6) {
    case 0:
      CHECK(map.erase(code) == there);
      reference.erase(code);
      break;
    case 1:
      CHECK(map.update(code, value) == there);
      if (there) reference[code] = value;
      break;
    case 2: {
      std::uint64_t found = 0;
      CHECK(map.get(code, found) == there && (!there || found == reference[code]));
      break;
    }
    default:
      CHECK(map.insert_or_assign(code, value) == !there);
      reference[code] = value;
  }
}

void as_map(int set, std::uint32_t leaf_keys, bool mixed) {
  std::mt19937_64 random(static_cast<unsigned>(set));
  CodeMap<std::uint64_t> map(perfect_leaves(leaf_keys));
  Reference reference;
  std::vector<std::uint64_t> loaded;
  for (int i = 0; i < 2'000; ++i) loaded.push_back(draw(set, random));
  map.build(loaded.data(), loaded.data(), loaded.size());
  for (auto code : loaded) reference[code] = code;
  for (int i = 0; i < 20'000; ++i) {
    if (mixed && i % 1'000 == 0) {
      auto next = perfect_leaves(leaf_keys);
      if (i % 2'000 == 0) next.leaf = Leaf::hashed;
      map.configure(next);
    }
    operate(map, reference, draw(set, random), random());
    if (i % 4'000 == 0) compare(map, reference, draw(set, random));
  }
  compare(map, reference, 0);
  auto statistics = map.statistics();
  CHECK(mixed || statistics.leaves[static_cast<std::size_t>(Leaf::perfect)] > 0);
  while (!reference.empty()) {
    auto code = reference.begin()->first;
    CHECK(map.erase(code));
    reference.erase(code);
  }
  compare(map, reference, 0);
}

}  // namespace

int main() {
  for (int set = 0; set < 5; ++set) {
    for (std::uint32_t leaf_keys : {16U, 256U, 4'096U}) {
      as_map(set, leaf_keys, false);
      as_map(set, leaf_keys, true);
    }
  }
}
