// Schedules that a search changes, and their simulation.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/graph.hpp"

namespace headrace::memory {

// A run of a forward operator in a stage behind the forward pass.
struct Run {
  std::int32_t stage, op, way;

  bool operator==(const Run&) const = default;
};

// A schedule in stages. Stage 0 is the forward pass; stage t, from 1, runs some forward operators
// again, in the graph's order, and then the t-th backward operator. A draft's implementations are
// numbered by operator.
struct Draft {
  std::vector<std::int32_t> forward, backward;
  std::vector<Run> again;  // by stage, then by operator

  bool operator==(const Draft&) const = default;

  // The run, or nullptr.
  const Run* find(int stage, int op) const;
  // Adds a run, or gives it another implementation.
  void put(const Run& run);
  void remove(int stage, int op);
  // Implementation of a run, which there is; stage 0 has the forward operators.
  int way(int stage, int op) const;
  void set_way(int stage, int op, int way);
};

// One lifetime of a storage: the step that creates it, and the last at which it is live.
struct Instance {
  std::int32_t storage, first, last;
  std::int32_t before;       // the storage's instance before this one, or -1
  std::int32_t overwritten;  // the step that overwrites it, or -1
};

// A draft and its simulation.
struct Trial {
  Draft draft;
  // by step
  std::vector<std::int32_t> stage, op, way;  // the implementation among those of all operators
  std::vector<std::int64_t> bytes;           // allocated while it runs
  std::vector<Instance> instances;           // by `first`
  std::vector<std::int32_t> newest;          // by storage: its last instance, or -1
  double time_us = 0;
  std::int64_t excess = 0;  // bytes above the budget, summed over the steps
  int peak = 0;             // first step with the most

  int steps() const { return static_cast<int>(op.size()); }
};

// Simulates `trial.draft` into the rest of the trial; false if it reads what is not there, or what
// was overwritten.
bool simulate(const Graph& graph, std::int64_t budget, Trial& trial);

}  // namespace headrace::memory
