// The perfect hash function on every size and on adversarial codes; its leaf against std::map.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "index/leaves/perfect_build.hpp"
#include "index/leaves/perfect_leaf.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/word.hpp"

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
  if (void* found = std::malloc(bytes)) return found;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using Codes = std::vector<std::uint64_t>;
constexpr auto kHighest = ~std::uint64_t{0};

Codes ascending(const std::set<std::uint64_t>& codes) { return {codes.begin(), codes.end()}; }

Codes random_codes(std::size_t count, std::uint64_t seed, std::uint64_t below = kHighest) {
  std::mt19937_64 random(seed);
  std::set<std::uint64_t> codes;
  while (codes.size() < count) codes.insert(random() % below);
  return ascending(codes);
}

std::uint64_t unmix(std::uint64_t hash) {
  auto inverse = [](std::uint64_t odd) {
    auto found = odd;
    for (int i = 0; i < 6; ++i) found *= 2 - odd * found;
    return found;
  };
  hash ^= hash >> 32;
  hash *= inverse(0x9fb21c651e98df25U);
  hash ^= hash >> 29 ^ hash >> 58;
  hash *= inverse(0xd6e8feb86659fd93U);
  return hash ^ hash >> 32;
}

// Codes whose hashes are neighbours: all of them fall into one bucket of hashes.
Codes one_bucket(std::size_t count) {
  std::set<std::uint64_t> codes;
  for (std::uint64_t i = 0; i < count; ++i) codes.insert(unmix(i));
  CHECK(perfect::mix(*codes.begin()) < count && codes.size() == count);
  return ascending(codes);
}

std::vector<Codes> adversarial() {
  std::vector<Codes> sets;
  std::set<std::uint64_t> powers{0, kHighest};
  for (int i = 0; i < 64; ++i) {
    powers.insert(std::uint64_t{1} << i);
    powers.insert(kHighest - (std::uint64_t{1} << i));
  }
  sets.push_back(ascending(powers));
  for (std::size_t count : {2, 63, 1'000, 65'536}) {
    std::set<std::uint64_t> dense, top, ends, spread;
    for (std::uint64_t i = 0; i < count; ++i) {
      dense.insert(i);
      top.insert(kHighest - i);
      ends.insert(i % 2 == 0 ? i : kHighest - i);
      spread.insert(i * (kHighest / count));
    }
    for (const auto& codes : {dense, top, ends, spread}) sets.push_back(ascending(codes));
    sets.push_back(one_bucket(count));
    std::set<std::uint64_t> geometric{0, kHighest};  // some codes for each power of two
    std::mt19937_64 random(count);
    while (geometric.size() < count) geometric.insert(random() >> random() % 64);
    sets.push_back(ascending(geometric));
    auto mixed = one_bucket(count - 1);  // and one huge outlier
    if (mixed.back() != kHighest) mixed.push_back(kHighest);
    sets.push_back(mixed);
  }
  return sets;
}

void check_function(const Codes& codes, const PerfectOptions& options) {
  auto made = build_perfect_hash(codes.data(), codes.size(), options);
  std::vector<bool> seen(codes.size());
  for (auto code : codes) {
    auto position = made.position(code);
    CHECK(position < codes.size() && !seen[position]);
    seen[position] = true;
  }
  std::mt19937_64 random(codes.size());
  for (int i = 0; i < 1'000; ++i) CHECK(made.position(random()) < codes.size());
  for (auto code : {std::uint64_t{0}, kHighest}) CHECK(made.position(code) < codes.size());
}

void check_choices(const Codes& codes) {
  for (auto choice : {BucketChoice::kHash, BucketChoice::kModel}) {
    check_function(codes, {.choice = choice});
    check_function(codes, {.choice = choice, .codes_per_bucket_x16 = 100, .free_per_1024 = 0});
  }
  check_function(codes, {.choice = BucketChoice::kHash, .grouping = Grouping::kSorting});
}

void functions_are_minimal_and_perfect() {
  for (std::size_t count = 1; count <= 300; ++count) check_choices(random_codes(count, count));
  for (std::size_t count : {1'023, 4'096, 30'000, 65'536}) {
    check_choices(random_codes(count, count));
    check_choices(random_codes(count, count, 2 * count));
  }
  for (const auto& codes : adversarial()) check_choices(codes);
}

// Codes that the model spreads evenly need few bits; others are bounded by the list of codes.
void memory_is_bounded() {
  auto bits = [](const Codes& codes, BucketChoice choice) {
    return build_perfect_hash(codes.data(), codes.size(), {.choice = choice}).bits_per_code();
  };
  for (auto choice : {BucketChoice::kHash, BucketChoice::kModel}) {
    CHECK(bits(random_codes(4'096, 1), choice) < 5);
    CHECK(bits(random_codes(65'536, 2), choice) < 5);
    for (const auto& codes : adversarial()) {
      if (codes.size() >= 1'000) CHECK(bits(codes, choice) < 90);
    }
  }
}

void refuses_other_counts() {
  Codes codes(kMostPerfectCodes + 1);
  CHECK(thrown<std::invalid_argument>([&] { build_perfect_hash(codes.data(), 0); }).find(" 0 ") !=
        std::string::npos);
  CHECK(thrown<std::invalid_argument>([&] {
          build_perfect_hash(codes.data(), codes.size());
        }).find("65537") != std::string::npos);
}

template <class Value>
Value value_of(std::uint64_t number) {
  Value value{};
  if constexpr (!std::is_empty_v<Value>) {
    std::memcpy(&value, &number, std::min(sizeof value, sizeof number));
  }
  return value;
}
template <class Value>
bool same(const Value& a, const Value& b) {
  if constexpr (std::is_empty_v<Value>) return true;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// One leaf that is built again when it is full, as a tree does; strong guarantee.
template <class Value>
class Built {
 public:
  Built() : arena_(std::allocator<std::byte>()) {}
  explicit Built(bool high_empty) : Built() { high_empty_ = high_empty; }
  Built(const Built&) = delete;
  Built& operator=(const Built&) = delete;
  ~Built() { release(); }

  bool empty() const { return lines_ == nullptr; }
  PerfectLeaf<Value> leaf() const { return PerfectLeaf<Value>(word()); }
  std::size_t bytes() const { return PerfectLeaf<Value>::lines(word()) * kLineBytes; }

  void insert(std::uint64_t code, const Value& value) {
    if (!empty() && leaf().insert(code, value, true) != Outcome::full) return;
    rebuild([&](Codes& codes, std::vector<Value>& values) {
      auto at = std::lower_bound(codes.begin(), codes.end(), code) - codes.begin();
      codes.insert(codes.begin() + at, code);
      values.insert(values.begin() + at, value);
    });
  }
  void plant() {
    rebuild([](auto&, auto&) {});
  }
  bool erase(std::uint64_t code) {
    auto outcome = empty() ? Outcome::absent : leaf().erase(code);
    if (outcome == Outcome::sparse) rebuild([](auto&, auto&) {});
    return outcome != Outcome::absent;
  }

 private:
  Word word() const { return Word(lines_, Kind::perfect, units_, high_empty_); }

  template <class Change>
  void rebuild(Change&& change) {
    auto count = empty() ? 0 : leaf().count();
    Codes codes(count);
    std::vector<Value> values(count);
    EntryBuffer<Value> entries{codes.data(), values.data()};
    if (count > 0) leaf().gather(0, entries);
    CHECK(entries.count == count);
    change(codes, values);
    if (codes.empty() && release()) return;  // else one without entries
    PerfectDraft<Value> draft({codes.data(), values.data(), codes.size()});
    auto* lines = arena_.allocate(draft.lines());
    draft.write(Word(lines, Kind::perfect, draft.units(), high_empty_));
    release();
    lines_ = lines;
    units_ = draft.units();
    CHECK(draft.lines() == PerfectLeaf<Value>::lines(word()));
  }
  bool release() {
    if (lines_ == nullptr) return false;
    auto count = PerfectLeaf<Value>::lines(word());
    arena_.release(std::exchange(lines_, nullptr), count);
    return true;
  }

  Arena<std::allocator<std::byte>> arena_;
  Line* lines_ = nullptr;
  std::uint32_t units_ = 0;
  bool high_empty_ = true;
};

template <class Value>
void compare(const Built<Value>& built, const std::map<std::uint64_t, Value>& expected,
             std::uint64_t from) {
  if (built.empty()) {
    CHECK(expected.empty());
    return;
  }
  auto leaf = built.leaf();
  CHECK(leaf.broken() == nullptr);
  CHECK(leaf.count() == expected.size() && leaf.capacity() >= expected.size());
  std::uint64_t highest = 0;
  CHECK(leaf.max(highest) == !expected.empty());
  CHECK(expected.empty() || highest == expected.rbegin()->first);
  auto next = expected.begin();
  leaf.for_each([&](std::uint64_t code, const Value& value) {
    CHECK(next != expected.end() && next->first == code && same(next->second, value));
    ++next;
  });
  CHECK(next == expected.end());
  for (std::size_t most : {std::size_t{1}, std::size_t{10}, expected.size() + 1}) {
    Codes codes(most);
    std::vector<Value> values(most);
    EntryBuffer<Value> to{codes.data(), values.data()};
    leaf.scan(from, most, to);
    auto found = to.count;
    next = expected.lower_bound(from);
    for (std::size_t i = 0; i < found; ++i, ++next) {
      CHECK(next != expected.end() && next->first == codes[i] && same(next->second, values[i]));
    }
    CHECK(found == most || next == expected.end());
  }
}

// Random changes of codes from a small set, so that each is erased and inserted again.
template <class Value>
void as_map(const Codes& pool, int changes, int erased_percent) {
  std::mt19937_64 random(pool.size());
  Built<Value> built(pool.back() != kHighest);
  std::map<std::uint64_t, Value> expected;
  built.plant();
  compare(built, expected, 0);
  for (int i = 0; i < changes; ++i) {
    auto code = pool[random() % pool.size()];
    if (static_cast<int>(random() % 100) < erased_percent) {
      CHECK(built.erase(code) == (expected.erase(code) != 0));
    } else {
      auto value = value_of<Value>(random());
      built.insert(code, value);
      expected[code] = value;
    }
    code = pool[random() % pool.size()];
    auto found = expected.find(code);
    Value value{};
    bool got = !built.empty() && built.leaf().get(code, value);
    CHECK(got == (found != expected.end()) && (!got || same(value, found->second)));
    if (got) {
      CHECK(built.leaf().update(code, value_of<Value>(i)));
      found->second = value_of<Value>(i);
    }
    if (i % 997 == 0) compare(built, expected, code);
  }
  compare(built, expected, pool[pool.size() / 2]);
}

struct Odd {
  char bytes[3];
};
struct Large {
  std::uint64_t words[11];
};

template <class Value>
void leaf_as_map() {
  auto without_zero = [](Codes codes) {  // a leaf never has both ends: one marks empty entries
    if (codes.back() == kHighest && codes.front() == 0) codes.erase(codes.begin());
    return codes;
  };
  for (std::size_t count : {1, 2, 9, 100, 3'000}) {
    as_map<Value>(random_codes(count, count), 6'000, 30);
    as_map<Value>(random_codes(count, count, 2 * count), 6'000, 55);
  }
  for (const auto& codes : adversarial()) {
    if (codes.size() <= 1'000) as_map<Value>(without_zero(codes), 3'000, 40);
  }
}

void leaf_memory() {
  auto codes = random_codes(4'096, 5);
  Built<std::uint64_t> wide;
  Built<std::uint32_t> narrow;
  for (auto code : codes) {
    wide.insert(code, code);
    narrow.insert(code, static_cast<std::uint32_t>(code));
  }
  CHECK(static_cast<double>(wide.bytes()) / 4'096 < 22);
  CHECK(static_cast<double>(narrow.bytes()) / 4'096 < 18);
}

// Every allocation of a rebuild fails once; the leaf keeps its entries.
void survives_failed_allocations() {
  auto codes = random_codes(600, 11);
  Built<std::uint64_t> built;
  std::map<std::uint64_t, std::uint64_t> expected;
  long failures = 0;
  for (auto code : codes) {
    for (long allowed = 0;; ++allowed) {
      allocations_left = allowed;
      try {
        built.insert(code, ~code);
        allocations_left = -1;
        break;
      } catch (const std::bad_alloc&) {
        allocations_left = -1;
        ++failures;
        compare(built, expected, code);
      }
    }
    expected[code] = ~code;
  }
  compare(built, expected, 0);
  CHECK(failures > 100);
}

}  // namespace

int main() {
  functions_are_minimal_and_perfect();
  memory_is_bounded();
  refuses_other_counts();
  leaf_as_map<Nothing>();
  leaf_as_map<std::uint32_t>();
  leaf_as_map<std::uint64_t>();
  leaf_as_map<Odd>();
  leaf_as_map<Large>();
  leaf_memory();
  survives_failed_allocations();
}
