// A training step as tables of numbers: headrace.memory.graph, and the creators of its stages.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "rows.hpp"

namespace headrace::memory {

// Implementations are numbered over all operators: those of operator i are first_way[i] to
// first_way[i + 1] - 1. Storages that are always live are counted in `resident_bytes`.
struct Graph {
  int forward_count = 0;
  std::int64_t resident_bytes = 0;
  std::vector<std::int32_t> first_way;
  std::vector<std::uint8_t> again;  // by operator: may it run more than once
  // by implementation
  Rows reads, creates;
  std::vector<std::int32_t> overwrites;  // a storage, or -1
  std::vector<double> time_us;
  std::vector<std::int64_t> workspace_bytes;
  // by storage
  std::vector<std::int64_t> nbytes;
  std::vector<std::int32_t> creator;           // forward operator that can create it again, or -1
  std::vector<std::int32_t> outputs, results;  // storages that are held to the end

  int operators() const { return static_cast<int>(again.size()); }
  int storages() const { return static_cast<int>(nbytes.size()); }
  int ways(int op) const { return first_way[op + 1] - first_way[op]; }
};

// The tables do not fit together.
struct GraphError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// Throws GraphError for tables of different lengths, and an index out of range.
void check(const Graph& graph);

}  // namespace headrace::memory
