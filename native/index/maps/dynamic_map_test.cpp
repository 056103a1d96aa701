// The map with a lock: types of keys, threads beside a conversion and a recording, replays.
#include "index/maps/dynamic_map.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"
#include "index/maps/replay.hpp"
#include "index/maps/slices.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

using Codes = std::vector<std::uint64_t>;

KeyColumn column(const Codes& keys) { return {keys.data(), keys.size(), KeyType::uint64}; }

// std::vector<bool> has no array.
struct Flags {
  explicit Flags(std::size_t count) : bytes(std::make_unique<bool[]>(count)) {}
  std::unique_ptr<bool[]> bytes;
};

void test_keys_of_all_types() {
  const double inf = std::numeric_limits<double>::infinity();
  const std::array<double, 5> doubles{inf, -inf, -0.0, 1.5, -1.5};
  const std::array<std::uint64_t, 5> values{1, 2, 3, 4, 5};
  auto map = make_dynamic_map(8);
  map->build({doubles.data(), doubles.size(), KeyType::float64}, values.data(), 1);
  Codes codes(5);
  Codes found(5);
  CHECK(map->scan({}, 5, codes.data(), found.data()) == 5);
  decode_keys(codes.data(), 5, KeyType::float64);
  CHECK(std::bit_cast<double>(codes[0]) == -inf && std::bit_cast<double>(codes[2]) == 0);
  CHECK((found == Codes{2, 5, 3, 4, 1}));

  const std::array<double, 2> wrong{1, std::nan("")};
  const KeyColumn wrong_keys{wrong.data(), wrong.size(), KeyType::float64};
  auto text = thrown<std::domain_error>([&] { map->insert_or_assign(wrong_keys, values.data()); });
  CHECK(text == "key 1 is NaN (1 of 2 are), needs numbers");
  CHECK(map->size() == 5);
  CHECK(!thrown<std::invalid_argument>([] { make_dynamic_map(5); }).empty());
}

void test_ranges() {
  Codes keys;
  for (std::uint64_t key = 0; key < 100'000; key += 2) keys.push_back(key);
  auto map = make_dynamic_map(0);
  map->build(column(keys), nullptr, 1);
  Codes codes(keys.size() + 1);
  const auto count = [&](std::uint64_t first, std::uint64_t last) {
    return map->scan({first, last}, codes.size(), codes.data(), nullptr);
  };
  CHECK(count(0, ~std::uint64_t{0}) == keys.size());
  CHECK(count(0, 99'998) == keys.size());
  CHECK(count(1, 1) == 0);
  CHECK(count(2, 2) == 1);
  CHECK(count(101, 60'000) == 29'950 && codes[0] == 102 && codes[29'949] == 60'000);
  CHECK(map->scan({100, 1000}, 10, codes.data(), nullptr) == 10 && codes[9] == 118);
}

// Of leaves of all types: neighbours, positions and reverse scans, between changes.
void test_order() {
  std::mt19937_64 random(6);
  for (const auto leaf : {Leaf::gapped, Leaf::log, Leaf::hashed, Leaf::perfect}) {
    auto map = make_dynamic_map(8, {.leaf = leaf});
    std::set<std::uint64_t> expected;
    for (int round = 0; round < 3; ++round) {
      Codes keys(20'000);
      for (auto& key : keys) key = random() >> random() % 40;
      keys[0] = 0;
      keys[1] = ~std::uint64_t{0};
      map->insert_or_assign(column(keys), keys.data());
      expected.insert(keys.begin(), keys.end());
      CHECK(map->erase_range({keys[2], keys[2] + 1'000}) > 0);
      expected.erase(expected.lower_bound(keys[2]), expected.upper_bound(keys[2] + 1'000));
      const Codes ascending(expected.begin(), expected.end());
      Codes down(ascending.size() + 1);
      Codes values(down.size());
      CHECK(map->scan_down({}, down.size(), down.data(), values.data()) == ascending.size());
      CHECK(std::equal(ascending.rbegin(), ascending.rend(), down.begin()));
      CHECK(down == values);
      for (int i = 0; i < 200; ++i) {
        const auto position = random() % ascending.size();
        const auto code = ascending[position];
        std::uint64_t out = 0;
        std::uint64_t value = 0;
        std::int64_t rank = 0;
        map->rank({&code, 1, KeyType::uint64}, &rank);
        CHECK(rank == static_cast<std::int64_t>(position));
        map->select(&rank, 1, &out, &value);
        CHECK(out == code && value == code);
        const bool above = map->neighbour_of_one(code, {true, false}, out, &value);
        CHECK(above == (position + 1 < ascending.size()));
        CHECK(!above || (out == ascending[position + 1] && value == out));
        const bool below = map->neighbour_of_one(code, {false, false}, out, &value);
        CHECK(below == (position > 0) && (!below || out == ascending[position - 1]));
      }
      auto cursor = map->cursor();
      std::uint64_t code = 0;
      std::uint64_t value = 0;
      for (auto at = ascending.rbegin(); at != ascending.rend(); ++at) {
        CHECK(cursor->previous(code, &value) && code == *at && value == *at);
      }
      CHECK(!cursor->previous(code, &value));
      for (const auto position : {ascending.size() - 1, ascending.size() / 2, std::size_t{0}}) {
        CHECK(map->take_at(position, code, &value) && code == ascending[position]);
        expected.erase(code);
      }
      CHECK(!map->take_at(expected.size(), code, &value));
      map->verify();
    }
  }
}

// Each thread's own keys are as it left them, whatever the others, conversions and a recording do.
void use(DynamicMap& map, std::uint64_t thread, std::atomic<bool>& wrong) {
  std::mt19937_64 random(thread);
  Codes keys(400);
  Codes values(400);
  Flags found(400);
  const std::uint64_t missing = 0;
  for (int round = 0; round < 40; ++round) {
    for (auto& key : keys) key = random() / 4 * 4 + thread;
    map.insert_or_assign(column(keys), keys.data());
    const auto there = map.find(column(keys), values.data(), found.bytes.get(), &missing);
    if (there != keys.size() || values != keys) wrong = true;
    const KeyColumn some{keys.data(), 100, KeyType::uint64};
    if (map.erase(some) != 100 || map.contains(some, found.bytes.get()) != 0) wrong = true;
  }
}

void test_threads_beside_a_conversion() {
  auto map = make_dynamic_map(8);
  std::atomic<bool> wrong = false;
  std::vector<std::thread> threads;
  for (std::uint64_t each = 0; each < 3; ++each) {
    threads.emplace_back([&, each] { use(*map, each, wrong); });
  }
  for (auto leaf : {Leaf::gapped, Leaf::log, Leaf::perfect, Leaf::hashed}) {
    Configuration configuration;
    configuration.leaf = leaf;
    map->configure(configuration);
    const auto number = map->begin_recording(0, 10'000, false);
    CHECK(number != 0 && map->begin_recording(0, 10, true) == 0);
    SlicedConversion conversion({1e-4, 0.5});
    while (conversion.run(*map, 1e-3)) {
    }
    CHECK(conversion.slices() > 0);
    SlicedSelection selection(1);
    while (selection.run(*map, 1e-3)) {
    }
    CHECK(std::is_sorted(selection.codes().begin(), selection.codes().end()));
    CHECK(map->end_recording(number)->operations().size() <= 10'000);
  }
  for (auto& thread : threads) thread.join();
  CHECK(!wrong);
  map->verify();
  CHECK(map->size() == 3 * 40 * 300);
  CHECK(map->copy()->size() == map->size());
}

// Conversions to and fro leave a tree that is hardly deeper than one that is made anew.
void test_conversions_keep_the_depth() {
  std::mt19937_64 random(5);
  Codes keys(100'000);
  for (auto& key : keys) key = (random() >> random() % 24) & 0xFFF0'FFF0'0FF0'00FF;
  auto map = make_dynamic_map(8);
  map->build(column(keys), keys.data(), 1);
  const std::array<Configuration, 4> configurations{{{.leaf = Leaf::hashed, .fragment_keys = 64},
                                                     {.leaf = Leaf::log, .fragment_keys = 256},
                                                     {.leaf = Leaf::gapped, .leaf_keys = 1024},
                                                     {.leaf = Leaf::hashed, .fragment_keys = 128}}};
  for (int round = 0; round < 3; ++round) {
    for (const auto& configuration : configurations) {
      map->configure(configuration);
      SlicedConversion conversion({.slice_s = 1e-3, .share = 1.0});
      while (conversion.run(*map, 1.0)) {
      }
      map->verify();
      const auto converted = map->statistics();
      auto fresh = make_dynamic_map(8, configuration);
      fresh->build(column(keys), keys.data(), 1);
      CHECK(converted.leaves[static_cast<std::size_t>(configuration.leaf)] > 0);
      CHECK(converted.keys[static_cast<std::size_t>(configuration.leaf)] == converted.size);
      CHECK(converted.mean_depth < fresh->statistics().mean_depth + 0.7);
    }
  }
}

// Of leaves of all types the selected keys are read in slices, ascending.
void test_selections() {
  std::mt19937_64 random(4);
  Codes keys(20'000);
  for (auto& key : keys) key = random() >> random() % 40;
  keys[0] = 0;
  keys[1] = ~std::uint64_t{0};
  for (const auto leaf : {Leaf::gapped, Leaf::log, Leaf::hashed, Leaf::perfect}) {
    auto map = make_dynamic_map(8, {.leaf = leaf});
    map->insert_or_assign(column(keys), keys.data());
    for (const unsigned halvings : {0U, 3U}) {
      std::set<std::uint64_t> wanted;
      for (auto key : keys) {
        if (Recording::selects(key, halvings)) wanted.insert(key);
      }
      SlicedSelection selection(halvings, 1.0);
      while (selection.run(*map, 1e-3)) {
      }
      CHECK(selection.codes() == Codes(wanted.begin(), wanted.end()));
    }
  }
}

void test_a_full_recording_halves_its_share() {
  Recording recording(0, 1000);
  for (std::uint64_t code = 0; code < 100'000; ++code) {
    recording.add(Operation::find, code, true);
  }
  const auto& kept = recording.operations();
  CHECK(recording.halvings() == 7 && kept.size() > 700 && kept.size() < 860);
  for (const auto& one : kept) CHECK(recording.selects(one.code));
  Recording busy(0, 10);
  for (int i = 0; i < 1000; ++i) busy.add(Operation::insert, 5, i > 0);
  CHECK(busy.operations().size() <= 10);
}

void test_replays() {
  std::mt19937_64 random(1);
  Codes loaded(2000);
  for (auto& code : loaded) code = random() % 5000;
  Codes codes(20'000);
  std::vector<std::uint8_t> operations(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = random() % 5000;
    operations[i] = static_cast<std::uint8_t>(random() % kOperations);
  }
  const TraceView trace{loaded, operations, codes};
  std::uint64_t found = 0;
  std::vector<Configuration> configurations(4);
  configurations[0].leaf = Leaf::gapped;
  configurations[1].leaf = Leaf::log;
  configurations[2].leaf = Leaf::perfect;
  configurations[3].leaf = Leaf::hashed;
  for (std::size_t bytes : {0U, 4U, 8U}) {
    for (const auto& result : replay_dynamic(bytes, configurations, trace)) {
      CHECK(result.wrong == 0 && result.operations == codes.size() && result.scanned > 0);
      CHECK(found == 0 || found == result.found);
      found = result.found;
    }
    for (std::size_t batch : {3U, 256U, 10'000U}) {
      for (const auto& result : replay_dynamic(bytes, configurations, trace, {.batch = batch})) {
        CHECK(result.wrong == 0 && result.operations == codes.size());
      }
    }
  }
  const std::vector<Configuration> one(1);
  CHECK(replay<std::uint64_t>(one, trace, {.most_seconds = 0})[0].operations == 0);
  const auto begun = replay<std::uint64_t>(configurations, trace, {.most_seconds = 1e-9});
  for (const auto& result : begun) CHECK(result.operations == begun[0].operations);
  CHECK(begun[0].operations > 0 && begun[0].operations < codes.size());

  operations[7] = 4;
  auto text = thrown<std::invalid_argument>([&] { replay<Nothing>(one, trace); });
  CHECK(text == "operation 7 is 4, needs 0 (find), 1 (insert), 2 (erase) or 3 (scan)");
  text = thrown<std::invalid_argument>([&] { replay<Nothing>(one, {loaded, operations, loaded}); });
  CHECK(text == "operations are 20000, keys 2000: needs one key for each operation");
  CHECK(!thrown<std::invalid_argument>([&] { replay_dynamic(2, {}, {}); }).empty());
}

void test_activity() {
  auto map = make_dynamic_map(0);
  Codes keys(100'000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  map->insert_or_assign(column(keys), nullptr);
  map->insert_or_assign({keys.data(), 1, KeyType::uint64}, nullptr);
  const auto seen = map->activity();
  const auto inserts = seen.counts()[static_cast<std::size_t>(Operation::insert)];
  CHECK(inserts.operations == 100'001 && inserts.effective == 100'000);
  CHECK(inserts.timed >= 100'000 && inserts.timed_ns > 0);
  CHECK(seen.sampled() > 150 && seen.sampled() < 250);
}

// Operations by themselves are all counted, whatever is between them; those sampled are timed.
void test_activity_of_single_operations() {
  Activity activity;
  std::uint64_t timed = 0;
  for (std::uint64_t code = 0; code < 60'000; ++code) {
    const auto operation = code % 3 == 0 ? Operation::insert : Operation::find;
    if (activity.passes(operation)) continue;
    Activity::Batch batch(activity, operation, 1);
    activity.sample(operation, &code, 1);
    batch.done(1);
    ++timed;
  }
  const auto [finds, inserts, erases, scans] = activity.counts();
  CHECK(finds.operations == 40'000 && inserts.operations == 20'000);
  CHECK(erases.operations == 0 && scans.operations == 0);
  CHECK(finds.timed + inserts.timed == timed && activity.sampled() == timed);
  CHECK(finds.effective == finds.timed && timed > 90 && timed < 150);
  for (std::uint64_t i = 0; i < timed; ++i) {
    const auto& one = activity.sampled(i);
    CHECK((one.code % 3 == 0) == (one.operation == Operation::insert));
  }
}

}  // namespace

int main() {
  test_keys_of_all_types();
  test_ranges();
  test_order();
  test_threads_beside_a_conversion();
  test_conversions_keep_the_depth();
  test_selections();
  test_a_full_recording_halves_its_share();
  test_replays();
  test_activity();
  test_activity_of_single_operations();
}
