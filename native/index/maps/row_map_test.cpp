// Keys and rows: sets of numbers against std::set, loads without memory, threads that insert and
// erase at once.
#include "index/maps/row_map.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

// Allocations until one fails; negative: none does.
long allocations_left = -1;

}  // namespace

// Not inlined: gcc would warn that free() does not belong to operator new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

void test_numbers_against_a_set() {
  std::mt19937_64 random(3);
  NumberSet numbers;
  std::set<std::int64_t> reference;
  for (int round = 0; round < 20'000; ++round) {
    const auto number = static_cast<std::int64_t>(random() % 200);
    if (random() % 2 == 0) {
      if (reference.insert(number).second) numbers.add(number, number + 1);
    } else if (random() % 20 == 0) {
      std::vector<std::int64_t> taken;
      numbers.take(3, taken);
      for (const auto least : taken) {
        CHECK(!reference.empty() && *reference.begin() == least);
        reference.erase(reference.begin());
      }
    } else {
      CHECK(numbers.remove(number) == (reference.erase(number) == 1));
    }
    CHECK(numbers.size() == reference.size());
  }
  const auto end = numbers.trim(200);
  for (auto number = end; number < 200; ++number) CHECK(reference.erase(number) == 1);
  CHECK(!reference.contains(end - 1));
  CHECK(numbers.size() == reference.size());
}

// Where memory ended within a load, some shards had keys whose rows others were given next.
void test_failed_load() {
  std::vector<std::uint64_t> keys(2'000);
  std::iota(keys.begin(), keys.end(), 1);
  std::vector<std::int64_t> rows(keys.size());
  std::iota(rows.begin(), rows.end(), 0);
  const KeyColumn column{keys.data(), keys.size(), KeyType::uint64};
  RowMap map(KeyType::uint64, 4);
  long failures = 0;
  for (bool loaded = false; !loaded; ++failures) {
    allocations_left = failures;
    try {
      map.build(column, rows.data(), 1);
      loaded = true;
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      CHECK(map.size() == 0 && map.rows() == 0);
    }
  }
  allocations_left = -1;
  CHECK(failures > 20 && map.size() == keys.size());
  const std::uint64_t key = 0;
  std::int64_t row = 0;
  bool is_new = false;
  map.find_or_insert({&key, 1, KeyType::uint64}, &row, &is_new);
  CHECK(is_new && row == std::ssize(rows));
  map.verify();
}

void test_threads() {
  RowMap map(KeyType::uint64, 4);
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&map, thread] {
      std::mt19937_64 random(thread);
      std::vector<std::uint64_t> keys(64);
      std::vector<std::int64_t> rows(keys.size());
      const auto is_new = std::make_unique<bool[]>(keys.size());
      for (int round = 0; round < 300; ++round) {
        for (auto& key : keys) key = random() % 500 * 4 + (round % 2 == 0 ? thread : 0);
        const KeyColumn column{keys.data(), keys.size(), KeyType::uint64};
        map.find_or_insert(column, rows.data(), is_new.get());
        for (const auto row : rows) CHECK(row >= 0);
        if (round % 3 != 0) continue;
        map.erase({keys.data(), 32, KeyType::uint64}, rows.data());
        std::vector<std::int64_t> retired(rows.begin(), rows.begin() + 32);
        std::erase(retired, RowMap::kNoRow);
        map.release(retired.data(), retired.size());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  map.verify();
  std::vector<std::uint64_t> codes(map.size() + 1);
  std::vector<std::int64_t> rows(codes.size());
  CHECK(map.scan(0, codes.size(), codes.data(), rows.data()) == map.size());
  rows.pop_back();
  CHECK(std::set<std::int64_t>(rows.begin(), rows.end()).size() == map.size());
}

}  // namespace

int main() {
  test_numbers_against_a_set();
  test_failed_load();
  test_threads();
}
