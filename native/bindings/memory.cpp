// Python binding of native/memory: columns in and out, the GIL released, no logic.
#include "memory/search.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace headrace::bindings;
using namespace headrace::memory;

using BlockLists = std::vector<std::vector<std::pair<std::vector<int>, std::vector<int>>>>;

std::vector<std::vector<Block>> blocks_of(const BlockLists& lists) {
  std::vector<std::vector<Block>> found;
  for (const auto& list : lists) {
    auto& blocks = found.emplace_back();
    for (const auto& [forward, backward] : list) blocks.push_back({forward, backward});
  }
  return found;
}

// Returns the draft of steps, each of which has three numbers: stage, operator, implementation.
Draft draft_of(const Search& search, const Integers& steps) {
  const auto& graph = search.graph();
  const auto count = static_cast<std::size_t>(graph.forward_count);
  Draft draft;
  draft.forward.assign(count, -1);
  draft.backward.assign(graph.again.size() - count, -1);
  if (steps.shape(0) % 3 != 0) throw GraphError("a step has three numbers");
  for (std::size_t i = 0; i < steps.shape(0); i += 3) {
    const auto stage = steps.data()[i], op = steps.data()[i + 1], way = steps.data()[i + 2];
    if (stage < 0 || stage > static_cast<int>(draft.backward.size()) || op < 0 ||
        op >= graph.operators() || way < 0 || way >= graph.ways(op)) {
      throw GraphError("a step is out of range");
    }
    draft.set_way(stage, op, way);
  }
  for (const auto* ways : {&draft.forward, &draft.backward}) {
    for (const auto way : *ways) {
      if (way < 0) throw GraphError("an operator does not run");
    }
  }
  return draft;
}

// Returns a draft that is simulated.
Trial trial_of(Search& search, const Integers& steps) {
  Trial trial{.draft = draft_of(search, steps)};
  if (!search.simulate(trial)) throw GraphError("a step reads what is not live");
  return trial;
}

using Column32 = decltype(array_of(std::vector<std::int32_t>{}));
using Column64 = decltype(array_of(std::vector<std::int64_t>{}));
using Simulated = std::tuple<double, std::int64_t, Column64, Column32, Column32, Column32>;

// Returns the time, the excess, the bytes by step, and columns of the instances; nothing for a
// draft that is no schedule.
std::optional<Simulated> simulated(Search& search, const Integers& steps) {
  Trial trial{.draft = draft_of(search, steps)};
  if (!search.simulate(trial)) return std::nullopt;
  std::vector<std::int32_t> storage, first, last;
  for (const auto& instance : trial.instances) {
    storage.push_back(instance.storage);
    first.push_back(instance.first);
    last.push_back(instance.last);
  }
  return Simulated{trial.time_us,
                   trial.excess,
                   array_of(std::move(trial.bytes)),
                   array_of(std::move(storage)),
                   array_of(std::move(first)),
                   array_of(std::move(last))};
}

auto steps_of(const Search& search, const Trial& trial) {
  std::vector<std::int32_t> steps;
  for (int step = 0; step < trial.steps(); ++step) {
    const auto op = trial.op[step];
    steps.insert(steps.end(),
                 {trial.stage[step], op, trial.way[step] - search.graph().first_way[op]});
  }
  return array_of(std::move(steps));
}

// Runs a move without the GIL, on and to steps.
template <class Move>
auto moved(Search& search, const Integers& steps, const nb::callable& stop, const Move& move) {
  auto trial = trial_of(search, steps);
  {
    nb::gil_scoped_release release;
    trial = move(std::move(trial), [&] {
      nb::gil_scoped_acquire gil;
      return nb::cast<bool>(stop());
    });
  }
  return steps_of(search, trial);
}

}  // namespace

void bind_memory(nb::module_& module) {
  nb::exception<GraphError>(module, "GraphError", PyExc_ValueError);

  nb::class_<Search>(module, "ScheduleSearch",
                     "Local search for fast schedules of a training step within a budget. Drafts "
                     "are flat columns with three numbers for each step: stage, operator and "
                     "implementation; `stop` is polled, and true ends a move with what it has.")
      .def(
          "__init__",
          [](Search* self, int forward_count, std::int64_t resident_bytes, Integers first_way,
             Column<std::uint8_t> again, Column<std::int64_t> reads_first, Integers reads,
             Column<std::int64_t> creates_first, Integers creates, Integers overwrites,
             Numbers time_us, Column<std::int64_t> workspace_bytes, Column<std::int64_t> nbytes,
             Integers creator, Integers outputs, Integers results, std::int64_t budget,
             std::uint64_t seed, const BlockLists& repeated) {
            new (self)
                Search(Graph{forward_count, resident_bytes, vector_of(first_way), vector_of(again),
                             rows_of(reads_first, reads), rows_of(creates_first, creates),
                             vector_of(overwrites), vector_of(time_us), vector_of(workspace_bytes),
                             vector_of(nbytes), vector_of(creator), vector_of(outputs),
                             vector_of(results)},
                       budget, seed, blocks_of(repeated));
          },
          nb::kw_only(), "forward_count"_a, "resident_bytes"_a, "first_way"_a, "again"_a,
          "reads_first"_a, "reads"_a, "creates_first"_a, "creates"_a, "overwrites"_a, "time_us"_a,
          "workspace_bytes"_a, "nbytes"_a, "creator"_a, "outputs"_a, "results"_a, "budget"_a,
          "seed"_a, "repeated"_a)
      .def("simulate", &simulated, "steps"_a,
           "Time, bytes above the budget, bytes by step, and each lifetime of a storage: storage, "
           "first and last step. None if a step reads what is not live.")
      .def(
          "repair",
          [](Search& self, Integers steps, double noise, const nb::callable& stop) {
            return moved(self, steps, stop, [&](Trial trial, const Search::Stop& ended) {
              return self.repair(std::move(trial), noise, ended);
            });
          },
          "steps"_a, "noise"_a, "stop"_a, "A draft that fits, or one with less excess.")
      .def(
          "polish",
          [](Search& self, Integers steps, const nb::callable& stop) {
            return moved(self, steps, stop, [&](Trial trial, const Search::Stop& ended) {
              return self.polish(std::move(trial), ended);
            });
          },
          "steps"_a, "stop"_a, "A draft without what it can do without.")
      .def(
          "exchanged",
          [](Search& self, Integers steps, const nb::callable& stop) {
            return moved(self, steps, stop, [&](Trial trial, const Search::Stop& ended) {
              return self.exchanged(std::move(trial), ended);
            });
          },
          "steps"_a, "stop"_a, "The best draft with implementations that are faster together.")
      .def(
          "spread",
          [](Search& self, Integers steps, const nb::callable& stop) {
            return moved(self, steps, stop, [&](Trial trial, const Search::Stop& ended) {
              return self.spread(std::move(trial), ended);
            });
          },
          "steps"_a, "stop"_a, "The best draft in which equal blocks are like one of them.")
      .def(
          "improve",
          [](Search& self, Integers steps, std::int64_t rounds, const nb::callable& stop,
             const nb::callable& found) {
            return moved(self, steps, stop, [&](Trial trial, const Search::Stop& ended) {
              return self.improve(trial, rounds, ended, [&](const Trial& faster) {
                nb::gil_scoped_acquire gil;
                found(steps_of(self, faster));
              });
            });
          },
          "steps"_a, "rounds"_a, "stop"_a, "found"_a,
          "The best draft of some rounds that change, repair and polish; `found` is called with "
          "each that is faster than those before.");
}
