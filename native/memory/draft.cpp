#include "memory/draft.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <string>
#include <utility>

namespace headrace::memory {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw GraphError(what);
}

template <class T>
void require_indices(const std::vector<T>& items, int least, int end, const char* what) {
  for (const auto item : items) require(item >= least && item < end, what);
}

template <class Runs>
auto place(Runs& runs, int stage, int op) {
  return std::lower_bound(
      runs.begin(), runs.end(), std::pair(stage, op),
      [](const Run& run, const auto& key) { return std::pair(run.stage, run.op) < key; });
}

bool is_at(const std::vector<Run>& runs, std::vector<Run>::const_iterator at, int stage, int op) {
  return at != runs.end() && at->stage == stage && at->op == op;
}

void list_steps(const Graph& graph, Trial& trial) {
  const auto& draft = trial.draft;
  const auto count = draft.forward.size() + draft.backward.size() + draft.again.size();
  for (auto* column : {&trial.stage, &trial.op, &trial.way}) column->resize(count);
  std::size_t step = 0;
  auto add = [&](int stage, int op, int way) {
    trial.stage[step] = stage;
    trial.op[step] = op;
    trial.way[step] = graph.first_way[op] + way;
    ++step;
  };
  for (int op = 0; op < graph.forward_count; ++op) add(0, op, draft.forward[op]);
  auto run = draft.again.begin();
  for (int number = 0; number < static_cast<int>(draft.backward.size()); ++number) {
    const int stage = number + 1;
    for (; run != draft.again.end() && run->stage == stage; ++run) add(stage, run->op, run->way);
    add(stage, graph.forward_count + number, draft.backward[number]);
  }
}

// Lists instances with their last reads; false if one is read that is not there.
bool follow(const Graph& graph, Trial& trial) {
  auto& instances = trial.instances;
  instances.clear();
  trial.newest.assign(graph.nbytes.size(), -1);
  const int last = trial.steps() - 1;
  auto hold = [&](const std::vector<std::int32_t>& held) {
    for (const auto storage : held) {
      if (trial.newest[storage] >= 0) instances[trial.newest[storage]].last = last;
    }
  };
  for (int step = 0; step <= last; ++step) {
    const auto way = static_cast<std::size_t>(trial.way[step]);
    for (const auto storage : graph.reads[way]) {
      const auto found = trial.newest[storage];
      if (found < 0 || instances[found].overwritten >= 0) return false;
      // an output's lives to the end already
      instances[found].last = std::max(instances[found].last, step);
    }
    if (const auto over = graph.overwrites[way]; over >= 0) {
      auto& instance = instances[trial.newest[over]];
      if (instance.last != step) return false;  // it is held
      instance.overwritten = step;
    }
    for (const auto storage : graph.creates[way]) {
      instances.push_back({storage, step, step, trial.newest[storage], -1});
      trial.newest[storage] = static_cast<std::int32_t>(instances.size()) - 1;
    }
    if (step + 1 == graph.forward_count) hold(graph.outputs);
  }
  hold(graph.results);
  return std::all_of(graph.results.begin(), graph.results.end(), [&](int storage) {
    const auto found = trial.newest[storage];
    return found < 0 || instances[found].overwritten < 0 || instances[found].overwritten == last;
  });
}

}  // namespace

void check(const Graph& graph) {
  const auto operators = graph.again.size(), ways = graph.time_us.size();
  const auto storages = graph.nbytes.size();
  require(graph.first_way.size() == operators + 1 && graph.first_way.front() == 0 &&
              graph.first_way.back() == static_cast<std::int32_t>(ways),
          "implementations are not those of the operators");
  for (std::size_t op = 0; op < operators; ++op) {
    require(graph.first_way[op] < graph.first_way[op + 1], "an operator has no implementation");
  }
  require(graph.forward_count >= 0 && graph.forward_count <= graph.operators(),
          "the forward pass has more operators than the graph");
  require(graph.overwrites.size() == ways && graph.workspace_bytes.size() == ways,
          "a table of implementations has another length");
  require(graph.creator.size() == storages, "a table of storages has another length");
  require_indices(graph.outputs, 0, graph.storages(), "an output is out of range");
  require_indices(graph.results, 0, graph.storages(), "a result is out of range");
  for (const auto* rows : {&graph.reads, &graph.creates}) {
    require(rows->size() == ways && rows->first.front() == 0 &&
                rows->first.back() == static_cast<std::int64_t>(rows->item.size()) &&
                std::is_sorted(rows->first.begin(), rows->first.end()),
            "rows are not those of the implementations");
    require_indices(rows->item, 0, graph.storages(), "a storage is out of range");
  }
  require_indices(graph.overwrites, -1, graph.storages(), "an overwritten storage is out of range");
  require_indices(graph.creator, -1, graph.forward_count, "a creator is out of range");
  for (std::size_t way = 0; way < ways; ++way) {
    const auto over = graph.overwrites[way];
    const auto read = graph.reads[way];
    require(over < 0 || std::find(read.begin(), read.end(), over) != read.end(),
            "a storage is overwritten that is not read");
  }
  for (int op = 0; op < graph.operators(); ++op) {
    for (int way = graph.first_way[op]; way < graph.first_way[op + 1]; ++way) {
      for (const auto storage : graph.reads[static_cast<std::size_t>(way)]) {
        require(graph.creator[storage] < op, "a storage is read before its creator");
      }
    }
  }
}

const Run* Draft::find(int stage, int op) const {
  const auto at = place(again, stage, op);
  return is_at(again, at, stage, op) ? &*at : nullptr;
}

void Draft::put(const Run& run) {
  const auto at = place(again, run.stage, run.op);
  if (is_at(again, at, run.stage, run.op)) {
    at->way = run.way;
  } else {
    again.insert(at, run);
  }
}

void Draft::remove(int stage, int op) {
  const auto at = place(again, stage, op);
  if (is_at(again, at, stage, op)) again.erase(at);
}

int Draft::way(int stage, int op) const {
  const int count = static_cast<int>(forward.size());
  if (op >= count) return backward[op - count];
  if (stage == 0) return forward[op];
  const auto* run = find(stage, op);
  assert(run != nullptr);
  return run->way;
}

void Draft::set_way(int stage, int op, int way) {
  const int count = static_cast<int>(forward.size());
  if (op >= count) {
    backward[op - count] = way;
  } else if (stage == 0) {
    forward[op] = way;
  } else {
    put({stage, op, way});
  }
}

bool simulate(const Graph& graph, std::int64_t budget, Trial& trial) {
  list_steps(graph, trial);
  if (!follow(graph, trial)) return false;
  const auto steps = static_cast<std::size_t>(trial.steps());
  trial.bytes.assign(steps + 1, 0);
  for (const auto& instance : trial.instances) {
    trial.bytes[instance.first] += graph.nbytes[instance.storage];
    trial.bytes[instance.last + 1] -= graph.nbytes[instance.storage];
  }
  trial.bytes.resize(steps);
  trial.time_us = 0;
  trial.excess = 0;
  trial.peak = 0;
  auto held = graph.resident_bytes;
  for (std::size_t step = 0; step < steps; ++step) {
    const auto way = trial.way[step];
    held += trial.bytes[step];
    auto needed = held + graph.workspace_bytes[way];
    // what is overwritten is the memory of what is created
    if (const auto over = graph.overwrites[way]; over >= 0) needed -= graph.nbytes[over];
    trial.bytes[step] = needed;
    trial.time_us += graph.time_us[way];
    trial.excess += std::max<std::int64_t>(0, needed - budget);
    if (needed > trial.bytes[trial.peak]) trial.peak = static_cast<int>(step);
  }
  return true;
}

}  // namespace headrace::memory
