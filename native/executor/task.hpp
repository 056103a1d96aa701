// A submitted collective or point-to-point message, up to its completion.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/program.hpp"
#include "reduce/reduce.hpp"
#include "transport/connection.hpp"

namespace headrace {

// `blocks` blocks of `elements` elements each, contiguous from `address`, every block cut into
// `chunks` slots: slot k of a block covers elements [k*E/c, (k+1)*E/c).
struct Segment {
  std::uintptr_t address;
  std::uint64_t elements;
  std::uint32_t blocks;
  std::uint32_t chunks;
};

inline std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

struct Collective;

// Completion state common to all tasks.
struct Task {
  std::uint64_t handle = 0;  // 0: known to the waiting caller only
  std::uint64_t bytes = 0;   // of all its buffers
  double timeout_s = 0;      // from its submission to its deadline
  Clock::time_point deadline;
  bool notify = false;
  std::string error;               // empty: succeeded
  std::atomic<bool> done = false;  // no other field changes afterwards
  virtual ~Task() = default;
  virtual Collective* as_collective() { return nullptr; }
  virtual std::string describe() const = 0;                  // what it is and what it waits for
  virtual std::string report() const { return describe(); }  // full state, on several lines
};

// Steady-clock times of the attempt that moved a step's first bytes, and of its lane's advance.
struct StepTimes {
  std::int64_t began_ns = 0;
  std::int64_t passed_ns = 0;
};

// Times at which a collective was called and ended at this rank, and times and bytes of its steps.
struct Trace {
  std::int64_t called_ns = 0;
  std::int64_t ended_ns = 0;
  std::vector<StepTimes> times;
  std::vector<std::uint64_t> bytes;
};

inline std::int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

struct StepState {
  std::byte* data = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t done = 0;  // bytes passed to the kernel, received, or copied
  bool passed = false;     // its lane is at a later step
};

// Selects the connections of a collective or message, so that a small one does not wait behind a
// large one. Background bytes move only if no others can.
enum class Priority : std::uint8_t { kUrgent, kNormal, kBackground };
inline constexpr int kPriorities = 3;

// Channels of a pair of ranks from 0 on: `channels` for the collectives of each priority, most
// urgent first, and one for background messages. All other messages have kPointToPointChannel.
inline constexpr int data_channels(int channels) { return kPriorities * channels + 1; }
inline constexpr int background_messages(int channels) { return kPriorities * channels; }

// Parameters on which ranks must agree beside sizes, in the upper half of a header's `lane`: bits
// 0-3 kind, 4-8 type, 9-11 operator, 12 average, 13-15 the program's mark.
using Signature = std::uint16_t;
std::string describe(Signature signature);

// One collective bound to its buffers.
struct Collective final : Task {
  explicit Collective(std::shared_ptr<const Program> from) : program(std::move(from)) {}

  // Restarts on these buffers, without allocating memory if they have the same slots as before.
  // Throws std::invalid_argument if the segments do not fit the program.
  void bind(const std::vector<Segment>& segments, DataType type, Operator op, bool average);

  Collective* as_collective() override { return this; }
  std::string describe() const override;
  std::string report() const override;
  std::size_t scratch_bytes() const { return scratch_.capacity(); }

  // Bytes of step `index` that its dependencies allow so far (from 0, not from `done`).
  std::uint64_t allowed(std::uint32_t index) const;

  const Step& step(std::uint32_t index) const { return program->steps()[index]; }

  // Current step of `lane`, which must not be finished.
  std::uint32_t current(std::uint32_t lane) const {
    return program->lanes()[lane].first_step + position[lane];
  }
  bool lane_finished(std::uint32_t lane) const {
    return position[lane] == program->lanes()[lane].steps;
  }

  // Whether every dependency of step `index` has been passed.
  bool unblocked(std::uint32_t index) const;

  // Records the times of every step until the next `bind`.
  void trace() { times.assign(states.size(), {}); }

  // Call before every attempt to move bytes of step `index`; the last one before its first byte
  // counts.
  void attempt(std::uint32_t index) {
    if (!times.empty() && states[index].done == 0) times[index].began_ns = now_ns();
  }

  // Advances `lane` to the next step.
  void pass(std::uint32_t lane);

  // Skips steps of `lane` that move nothing (they have no frame). Returns whether there were any.
  bool skip_empty(std::uint32_t lane);

  // Whether writes should bypass the caches.
  bool past_caches() const;

  // Runs the local steps that are unblocked; returns whether any ran.
  bool run_local();

  // Divides the result for an average.
  void finish_result();

  std::shared_ptr<const Program> program;
  DataType type = DataType::kFloat32;
  std::uint32_t element_size = 0;
  ReduceKernel kernel = nullptr;
  bool average = false;
  Signature signature = 0;
  std::uint32_t sequence = 0;
  std::uint32_t epoch = 0;
  Priority priority = Priority::kNormal;
  std::vector<StepState> states;
  std::vector<StepTimes> times;         // empty unless traced
  std::vector<std::uint32_t> position;  // per lane: steps finished
  std::uint32_t lanes_left = 0;

 private:
  struct Slot {
    std::byte* data;
    std::uint64_t bytes;
  };
  void check(const std::vector<Segment>& segments) const;
  void cut(const std::vector<Segment>& segments);
  void copy(const StepState& state) const;
  Slot range(std::uint32_t first, std::uint32_t count) const;

  std::vector<Slot> slots_;  // scratch last
  std::vector<std::byte> scratch_;
};

struct Message final : Task {
  std::string describe() const override;

  bool is_send = false;
  Priority priority = Priority::kNormal;  // of a send
  int peer = -1;                          // receives: -1 for any
  std::uint32_t tag = 0;
  std::byte* data = nullptr;
  std::uint64_t moved = 0;
  int source = -1;
  // Element types, numbered by the caller; 0: unknown. A receive's `came_as` is the sender's.
  std::uint8_t element = 0;
  std::uint8_t came_as = 0;
};

}  // namespace headrace
