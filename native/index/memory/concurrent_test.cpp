// Readers beside a writer, and writers beside each other; with a thread sanitizer this holds the
// contract of concurrent.hpp.
#include "index/memory/concurrent.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "index/maps/code_map.hpp"
#include "index/maps/sharded.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using Codes = std::vector<std::uint64_t>;

// Values name their code, so that a reader sees whether the two belong together. This one is
// written by one store, so inserts need no version.
struct Tag {
  std::uint64_t code = 0;
  static Tag of(std::uint64_t code, std::uint64_t version) { return {code ^ version}; }
  bool belongs(std::uint64_t to) const { return (code ^ to) < (1U << 20); }
};
// Both halves of this one are written at once only if nothing tears.
struct Tagged {
  std::uint64_t code = 0;
  std::uint64_t mirror = 0;
  static Tagged of(std::uint64_t code, std::uint64_t version) {
    return {code ^ version, ~code ^ version};
  }
  bool belongs(std::uint64_t to) const {
    return (code ^ mirror) == ~std::uint64_t{0} && (code ^ to) < (1U << 20);
  }
};

// Codes with a factor of 8 are never erased.
bool kept(std::uint64_t code) { return code / 3 % 8 == 0; }

struct Mix {
  std::mt19937_64 engine;
  std::uint64_t code() { return engine() % 6000 * 3 + (engine() % 4 << 50); }
};

Codes kept_codes() {
  Codes codes;
  for (std::uint64_t region = 0; region < 4; ++region) {
    for (std::uint64_t i = 0; i < 6000; ++i) {
      if (kept(i * 3)) codes.push_back(i * 3 + (region << 50));
    }
  }
  return codes;
}

template <class Value, class Map>
void read_once(const Map& map, Mix& mix) {
  const auto code = mix.code();
  Value value;
  const bool found = map.get(code, value);
  CHECK(!found || value.belongs(code));
  CHECK(found || !kept(code & ((1ULL << 50) - 1)));
  if (mix.engine() % 8 == 0) {
    Codes codes(50);
    std::vector<Value> values(50);
    const auto count = map.scan(code, 50, codes.data(), values.data());
    auto expected = code;
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(codes[i] >= expected && values[i].belongs(codes[i]));
      for (auto skipped = expected; skipped < codes[i] && skipped < expected + 100; ++skipped) {
        const auto low = skipped & ((1ULL << 50) - 1);
        CHECK(low % 3 != 0 || low >= 18'000 || !kept(low) || skipped >> 50 > 3);
      }
      expected = codes[i] + 1;
    }
  }
  if (mix.engine() % 16 == 0) {
    Codes codes(40);
    for (auto& each : codes) each = mix.code();
    std::vector<Value> values(40);
    bool there[40];
    map.get(codes.data(), 40, values.data(), there);
    for (std::size_t i = 0; i < 40; ++i) CHECK(!there[i] || values[i].belongs(codes[i]));
  }
  std::uint64_t end = 0;
  CHECK(map.min(end) && end == 0);
  CHECK(map.max(end) && end >> 50 == 3);
}

template <class Value, class Map>
void write_once(Map& map, Mix& mix) {
  const auto code = mix.code();
  const auto value = Value::of(code, mix.engine() % (1U << 20));
  switch (mix.engine() % 4) {
    case 0:
      if (!kept(code & ((1ULL << 50) - 1))) map.erase(code);
      break;
    case 1:
      map.update(code, value);
      break;
    case 2:
      map.insert(code, value);
      break;
    default:
      map.insert_or_assign(code, value);
  }
}

template <class Value, class Map>
void fill(Map& map) {
  std::vector<Value> values;
  const auto codes = kept_codes();
  for (const auto code : codes) values.push_back(Value::of(code, 1));
  map.build(codes.data(), values.data(), codes.size());
}

template <class Value>
void test_readers_beside_writer(const Configuration& configuration) {
  CodeMap<Value, Shared> map(configuration);
  fill<Value>(map);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 3; ++i) {
    readers.emplace_back([&map, &stop, i] {
      Mix mix{std::mt19937_64(i)};
      while (!stop.load()) read_once<Value>(map, mix);
    });
  }
  Mix mix{std::mt19937_64(99)};
  std::uint64_t cursor = 0;
  for (int i = 0; i < 30'000; ++i) {
    write_once<Value>(map, mix);
    if (i % 5000 == 2500) fill<Value>(map);
    if (i % 100 == 0 && !map.convert(cursor, 500)) cursor = 0;
  }
  stop.store(true);
  for (auto& reader : readers) reader.join();
  map.verify();
}

// Trees that are replaced are released, also if nothing else changes.
void test_memory_of_builds() {
  CodeMap<std::uint64_t, Shared> map;
  std::vector<std::uint64_t> codes(50'000);
  std::iota(codes.begin(), codes.end(), 7);
  std::size_t bytes = 0;
  for (int round = 0; round < 8; ++round) {
    map.build(codes.data(), codes.data(), codes.size());
    if (round == 1) bytes = map.statistics().bytes;
    CHECK(round < 2 || map.statistics().bytes <= bytes + bytes / 50);
  }
  map.clear();
  map.build(codes.data(), codes.data(), codes.size());
  CHECK(map.statistics().bytes <= bytes + bytes / 50);
}

template <class Value>
void test_writers() {
  ShardedMap<Value> map(4);
  fill<Value>(map);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&map, i] {
      Mix mix{std::mt19937_64(i)};
      for (int round = 0; round < 4'000; ++round) {
        write_once<Value>(map, mix);
        if (round % 4 == 0) read_once<Value>(map, mix);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  map.verify();
}

// Values of several words, replaced all the time beside a reader.
void test_updates_of_one_value() {
  for (const auto leaf : {Leaf::hashed, Leaf::log, Leaf::gapped, Leaf::perfect}) {
    CodeMap<Tagged, Shared> map({.leaf = leaf});
    map.insert(1, Tagged::of(1, 0));
    std::atomic<bool> stop{false};
    std::thread reader([&] {
      while (!stop.load()) {
        Tagged value;
        CHECK(map.get(1, value) && value.belongs(1));
      }
    });
    for (std::uint64_t version = 0; version < 200'000; ++version) {
      map.update(1, Tagged::of(1, version));
    }
    stop.store(true);
    reader.join();
  }
}

// More readers than have numbers, beside a writer whose leaves are replaced all the time.
void test_many_readers() {
  CodeMap<Tag, Shared> map({.fragment_keys = 16});
  fill<Tag>(map);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> begun{0};
  constexpr unsigned kThreads = detail::ThreadNumber::kNumbers + 20;
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < kThreads; ++i) {
    readers.emplace_back([&, i] {
      Mix mix{std::mt19937_64(i)};
      do {
        read_once<Tag>(map, mix);
        if (++begun > kThreads) std::this_thread::yield();
      } while (!stop.load());
    });
  }
  Mix mix{std::mt19937_64(98)};
  while (begun.load() < kThreads) std::this_thread::yield();
  for (int i = 0; i < 3'000; ++i) {
    write_once<Tag>(map, mix);
    if (i % 100 == 0) fill<Tag>(map);
  }
  stop.store(true);
  for (auto& reader : readers) reader.join();
  map.verify();
}

// Pins inside of each other are one; what was retired meanwhile exists until the last has ended.
void test_pins() {
  detail::Epochs epochs;
  Line line;
  int released = 0;
  struct Counting {
    int& released;
    void release(Line*, std::size_t) { ++released; }
  } arena{released};
  const auto retire = [&] {
    epochs.expect(1);
    epochs.retire(&line, 1);
    epochs.reclaim(arena, 1);
  };
  {
    const detail::Epochs::Pin outer(epochs);
    {
      const detail::Epochs::Pin inner(epochs);
      retire();
    }
    retire();
    CHECK(released == 0);
    std::thread other([&] { const detail::Epochs::Pin pin(epochs); });
    other.join();
  }
  epochs.reclaim(arena, 3);
  CHECK(released == 0);
  epochs.reclaim(arena, 2);
  CHECK(released == 2);
}

// A sharded map alone, against std::map.
void test_sharded() {
  ShardedMap<std::uint64_t> map(3);
  CHECK(map.shards() == 4);
  std::map<std::uint64_t, std::uint64_t> reference;
  Mix mix{std::mt19937_64(5)};
  for (int round = 0; round < 100; ++round) {
    Codes codes(100);
    for (auto& code : codes) code = mix.code();
    std::size_t fresh = 0;
    for (const auto code : codes) fresh += reference.emplace(code, code + 1).second;
    Codes values(codes);
    for (auto& value : values) ++value;
    CHECK(map.insert_or_assign(codes.data(), values.data(), codes.size()) == fresh);
    codes.resize(30);
    std::size_t erased = 0;
    for (const auto code : codes) erased += reference.erase(code);
    CHECK(map.erase(codes.data(), codes.size()) == erased);
  }
  map.verify();
  CHECK(map.size() == reference.size());
  Codes codes(reference.size() + 1);
  Codes values(codes.size());
  CHECK(map.scan(0, codes.size(), codes.data(), values.data()) == reference.size());
  std::size_t i = 0;
  for (const auto& [code, value] : reference) {
    CHECK(codes[i] == code && values[i] == value);
    ++i;
  }
  bool found[2];
  const std::uint64_t asked[] = {reference.begin()->first, 1};
  CHECK(map.get(asked, 2, values.data(), found) == 1 && found[0] && !found[1]);
  CHECK(!thrown<std::invalid_argument>([] { ShardedMap<std::uint64_t> none(0); }).empty());
}

}  // namespace

int main() {
  test_memory_of_builds();
  test_pins();
  test_sharded();
  for (const auto leaf : {Leaf::hashed, Leaf::log, Leaf::gapped, Leaf::perfect}) {
    const Configuration configuration{.leaf = leaf, .fragment_keys = 64, .leaf_keys = 128};
    test_readers_beside_writer<Tagged>(configuration);
    test_readers_beside_writer<Tag>(configuration);
  }
  test_updates_of_one_value();
  test_many_readers();
  test_writers<Tagged>();
  test_writers<Tag>();
}
