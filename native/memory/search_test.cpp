#include "memory/search.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "check.hpp"

using headrace::Random;
using headrace::thrown;
using namespace headrace::memory;

namespace {

const auto kGoOn = [] { return false; };

// A graph in the making.
struct Builder {
  Random& random;
  Graph graph;

  int storage(int creator) {
    graph.nbytes.push_back(1 + random.below(20));
    graph.creator.push_back(creator);
    return graph.storages() - 1;
  }

  void way(std::vector<std::int32_t> reads, const std::vector<std::int32_t>& creates,
           int overwrites = -1) {
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    for (const auto each : reads) graph.reads.item.push_back(each);
    for (const auto each : creates) graph.creates.item.push_back(each);
    graph.reads.close();
    graph.creates.close();
    graph.overwrites.push_back(overwrites);
    graph.time_us.push_back(1 + random.below(30));
    graph.workspace_bytes.push_back(random.below(4));
  }

  void close(bool again) {
    graph.first_way.push_back(static_cast<std::int32_t>(graph.time_us.size()));
    graph.again.push_back(again);
  }
};

Graph any_graph(Random& random) {
  Builder builder{random, {}};
  auto& graph = builder.graph;
  const int count = 2 + random.below(6);
  graph.forward_count = count;
  graph.resident_bytes = random.below(5);
  graph.first_way.push_back(0);
  std::vector<std::int32_t> made;
  for (int op = 0; op < count; ++op) {
    std::vector<std::int32_t> reads;
    if (op > 0) reads = {made.back(), made[random.below(op)]};
    const int storage = builder.storage(op);
    builder.way(reads, {storage});
    if (random.below(2) > 0) {
      const int extra = builder.storage(op);  // such as signs
      builder.way(reads, {storage, extra});
    }
    if (op > 0 && random.below(3) == 0) {
      graph.nbytes[storage] = graph.nbytes[made.back()];
      builder.way(reads, {storage}, made.back());
    }
    builder.close(op == 0 || random.below(5) > 0);
    made.push_back(storage);
  }
  graph.outputs = {made.back()};
  graph.creator[made.back()] = -1;
  int gradient = -1;
  for (int op = count - 1; op >= 0; --op) {
    std::vector<std::int32_t> reads{made[op], made[random.below(count)]};
    if (gradient >= 0) reads.push_back(gradient);
    const int next = builder.storage(-1);
    builder.way(reads, {next});
    if (random.below(2) > 0) {
      reads = {made[random.below(count)]};
      if (gradient >= 0) reads.push_back(gradient);
      builder.way(reads, {next});
    }
    builder.close(false);
    gradient = next;
  }
  graph.results = {gradient};
  return graph;
}

Draft any_draft(const Graph& graph, Random& random) {
  Draft draft;
  for (int op = 0; op < graph.operators(); ++op) {
    auto& ways = op < graph.forward_count ? draft.forward : draft.backward;
    ways.push_back(random.below(3) > 0 ? 0 : random.below(graph.ways(op)));
  }
  for (int stage = 1; stage <= static_cast<int>(draft.backward.size()); ++stage) {
    for (int op = 0; op < graph.forward_count; ++op) {
      if (random.below(4) == 0) draft.put({stage, op, random.below(graph.ways(op))});
    }
  }
  return draft;
}

struct Figures {
  std::vector<std::int64_t> bytes;
  double time_us = 0;
};

// What is allocated at each step, from the life of every instance; nothing for a wrong schedule.
std::optional<Figures> replayed(const Graph& graph, const Trial& trial) {
  struct Life {
    int storage, first, last, overwritten;
  };
  std::vector<Life> lives;
  std::map<int, std::size_t> newest;
  const int steps = trial.steps();
  auto extend = [&](const std::vector<std::int32_t>& held) {
    for (const auto storage : held) {
      if (newest.contains(storage)) lives[newest[storage]].last = steps - 1;
    }
  };
  Figures figures;
  for (int step = 0; step < steps; ++step) {
    const auto way = static_cast<std::size_t>(trial.way[step]);
    for (const auto storage : graph.reads[way]) {
      if (!newest.contains(storage)) return {};
      auto& life = lives[newest[storage]];
      life.last = std::max(life.last, step);
    }
    if (graph.overwrites[way] >= 0) {
      auto& life = lives[newest[graph.overwrites[way]]];
      life.overwritten = std::min(life.overwritten, step);
    }
    for (const auto storage : graph.creates[way]) {
      newest[storage] = lives.size();
      lives.push_back({storage, step, step, steps});
    }
    if (step == graph.forward_count - 1) extend(graph.outputs);
    figures.time_us += graph.time_us[way];
  }
  extend(graph.results);
  for (const auto& life : lives) {
    if (life.last > life.overwritten) return {};
  }
  for (int step = 0; step < steps; ++step) {
    const auto way = static_cast<std::size_t>(trial.way[step]);
    auto bytes = graph.resident_bytes + graph.workspace_bytes[way];
    for (const auto& life : lives) {
      // its memory is already that of what overwrites it
      const bool passed = life.overwritten == step;
      if (life.first <= step && step <= life.last && !passed) bytes += graph.nbytes[life.storage];
    }
    figures.bytes.push_back(bytes);
  }
  return figures;
}

void test_simulation_is_a_replay() {
  Random random(1, 0);
  int right = 0, wrong = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto graph = any_graph(random);
    check(graph);
    Trial trial;
    trial.draft = any_draft(graph, random);
    const auto budget = 10 + random.below(80);
    const bool valid = simulate(graph, budget, trial);
    const auto expected = replayed(graph, trial);
    CHECK(valid == expected.has_value());
    (valid ? right : wrong)++;
    if (!valid) continue;
    CHECK(trial.bytes == expected->bytes);
    CHECK(trial.time_us == expected->time_us);
    const auto most = std::max_element(trial.bytes.begin(), trial.bytes.end());
    CHECK(trial.peak == most - trial.bytes.begin());
    std::int64_t excess = 0;
    for (const auto bytes : trial.bytes) excess += std::max<std::int64_t>(0, bytes - budget);
    CHECK(trial.excess == excess);
  }
  CHECK(right > 100 && wrong > 100);
}

void test_moves_keep_drafts_right() {
  Random random(2, 0);
  int repaired = 0, faster = 0;
  for (int round = 0; round < 200; ++round) {
    const auto graph = any_graph(random);
    const auto plain = Search(graph, 0, 0, {}).plain();
    const auto budget = plain.bytes[plain.peak] * (60 + random.below(45)) / 100;
    const auto seed = static_cast<std::uint64_t>(round);
    std::vector<Trial> found;
    for (int again = 0; again < 2; ++again) {
      Search search(graph, budget, seed, {});
      const auto start = search.plain();
      auto trial = search.repair(start, 0.3, kGoOn);
      CHECK(trial.excess <= start.excess);
      repaired += start.excess > 0 && trial.excess == 0;
      const auto excess = trial.excess;
      const auto time = trial.time_us;
      trial = search.polish(std::move(trial), kGoOn);
      CHECK(trial.excess <= excess && trial.time_us <= time);
      if (trial.excess == 0) {
        auto last = trial.time_us;
        auto better = search.improve(trial, 3000, kGoOn, [&](const Trial& each) {
          CHECK(each.excess == 0 && each.time_us < last);
          last = each.time_us;
        });
        CHECK(better.time_us == last && better.excess == 0);
        faster += last < trial.time_us;
        better = search.exchanged(std::move(better), kGoOn);
        CHECK(better.time_us <= last && better.excess == 0);
        trial = better;
      }
      auto copy = trial;
      CHECK(search.simulate(copy) && copy.bytes == trial.bytes);
      found.push_back(std::move(trial));
    }
    CHECK(found[0].draft == found[1].draft);  // equal seeds, equal results
  }
  CHECK(repaired > 20 && faster > 5);
}

void test_a_search_stops() {
  Random random(3, 0);
  const auto graph = any_graph(random);
  Search search(graph, 1 << 20, 0, {});
  int polls = 0;
  // A stop that was true only once could be polled by a move within a round, and the search ran on.
  search.improve(
      search.plain(), std::int64_t{1} << 60, [&] { return ++polls >= 3; }, [](const Trial&) {});
  CHECK(polls >= 3);
}

void test_wrong_tables_are_refused() {
  Random random(4, 0);
  const auto graph = any_graph(random);
  auto refused = [&](auto change) {
    auto wrong = graph;
    change(wrong);
    return !thrown<GraphError>([&] { check(wrong); }).empty();
  };
  CHECK(refused([](Graph& wrong) { wrong.first_way.pop_back(); }));
  CHECK(refused([](Graph& wrong) { wrong.first_way[1] = 0; }));
  CHECK(refused([](Graph& wrong) { wrong.forward_count = 1000; }));
  CHECK(refused([](Graph& wrong) { wrong.overwrites.pop_back(); }));
  CHECK(refused([](Graph& wrong) { wrong.creator.pop_back(); }));
  CHECK(refused([](Graph& wrong) { wrong.reads.item.back() = wrong.storages(); }));
  CHECK(refused([](Graph& wrong) { wrong.reads.first.back() += 1; }));
  CHECK(refused([](Graph& wrong) { wrong.creator.front() = wrong.forward_count; }));
  CHECK(refused([](Graph& wrong) { wrong.creator.front() = wrong.forward_count - 1; }));
  CHECK(refused([](Graph& wrong) { wrong.overwrites.front() = 0; }));
  const std::vector<std::vector<Block>> unequal{{{{0}, {graph.forward_count}}, {{1, 2}, {0}}}};
  CHECK(!thrown<GraphError>([&] { Search(graph, 1, 0, unequal); }).empty());
}

}  // namespace

int main() {
  test_simulation_is_a_replay();
  test_moves_keep_drafts_right();
  test_a_search_stops();
  test_wrong_tables_are_refused();
}
