// One rank's part of a program: lanes of steps with dependencies. Immutable once made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

// The collective of the plan; the executor only transmits it to compare ranks.
enum class Kind : std::uint8_t {
  kAllreduce,
  kReduce,
  kBroadcast,
  kAllgather,
  kGather,
  kReduceScatter,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kCustom,
};
inline constexpr int kKinds = 10;
const char* name_of(Kind kind);

enum class Op : std::uint8_t { kSend, kReceive, kReceiveReduce, kCopy, kReduce };
enum class Direction : std::uint8_t { kSend, kReceive, kLocal };

struct Dependency {
  std::uint32_t on;  // step of this rank
  bool streaming;    // both cover the same slots: byte k waits for byte k only
};

struct Step {
  Op op;
  std::uint32_t slot;
  std::uint32_t source_slot;  // local steps only
  std::uint32_t count;        // consecutive slots
  std::uint32_t first_dependency;
  std::uint32_t dependencies;
  bool awaited = false;  // by some step of this rank: it or a later step of its lane
};

struct Lane {
  Direction direction;
  int peer;  // -1 for local lanes
  std::int32_t channel;
  std::uint32_t first_step;
  std::uint32_t steps;
};

// The columns of headrace.collectives.program.Program for one rank, indices made local.
struct ProgramColumns {
  std::span<const std::uint8_t> lane_direction;
  std::span<const std::int32_t> lane_peer;
  std::span<const std::int32_t> lane_channel;
  std::span<const std::int32_t> step_lane;
  std::span<const std::uint8_t> step_op;
  std::span<const std::int32_t> step_slot;
  std::span<const std::int32_t> step_source_slot;
  std::span<const std::int32_t> step_count;
  std::span<const std::int32_t> dependency_step;  // sorted
  std::span<const std::int32_t> dependency_on;
};

class Program {
 public:
  // Slots [result_slot, result_slot + result_slots) hold this rank's result (for averages); `mark`
  // is some bits of the digest of the program of all ranks. Throws std::invalid_argument if an
  // index is out of range or a lane has an op of another direction.
  Program(int rank, int ranks, std::uint32_t slots, std::uint32_t scratch_slots,
          std::uint32_t result_slot, std::uint32_t result_slots, const ProgramColumns& columns,
          Kind kind = Kind::kCustom, std::uint32_t mark = 0);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::uint32_t slots() const { return slots_; }
  std::uint32_t scratch_slots() const { return scratch_slots_; }
  std::uint32_t result_slot() const { return result_slot_; }
  std::uint32_t result_slots() const { return result_slots_; }
  std::int32_t channels() const { return channels_; }
  Kind kind() const { return kind_; }
  std::uint32_t mark() const { return mark_; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  const std::vector<Step>& steps() const { return steps_; }
  std::span<const Dependency> dependencies(const Step& step) const {
    return {dependencies_.data() + step.first_dependency, step.dependencies};
  }

 private:
  int rank_;
  int ranks_;
  std::uint32_t slots_;
  std::uint32_t scratch_slots_;
  std::uint32_t result_slot_;
  std::uint32_t result_slots_;
  std::int32_t channels_ = 0;
  Kind kind_;
  std::uint32_t mark_;
  std::vector<Lane> lanes_;
  std::vector<Step> steps_;
  std::vector<Dependency> dependencies_;
};

}  // namespace headrace
