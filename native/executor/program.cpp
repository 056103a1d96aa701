#include "executor/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

void require(bool holds, const char* what, std::size_t index) {
  if (!holds) {
    throw std::invalid_argument(std::string("program: ") + what + " at " + std::to_string(index));
  }
}

bool fits(Direction direction, Op op) {
  switch (direction) {
    case Direction::kSend:
      return op == Op::kSend;
    case Direction::kReceive:
      return op == Op::kReceive || op == Op::kReceiveReduce;
    case Direction::kLocal:
      return op == Op::kCopy || op == Op::kReduce;
  }
  return false;
}

// Far more than any plan has, and small enough for memory.
constexpr std::int64_t kMostSlots = 1 << 24;
// A header has 16 bits for the channel.
constexpr std::int32_t kMostChannels = 1 << 16;

void require_equal_columns(const ProgramColumns& in) {
  auto lanes = in.lane_peer.size();
  auto steps = in.step_op.size();
  require(in.lane_direction.size() == lanes && in.lane_channel.size() == lanes,
          "columns of lanes differ in length", 0);
  require(in.step_lane.size() == steps && in.step_slot.size() == steps &&
              in.step_source_slot.size() == steps && in.step_count.size() == steps,
          "columns of steps differ in length", 0);
  require(in.dependency_step.size() == in.dependency_on.size(),
          "columns of dependencies differ in length", 0);
}

bool is_local(const Step& step) { return step.op == Op::kCopy || step.op == Op::kReduce; }

}  // namespace

const char* name_of(Kind kind) {
  static constexpr const char* names[kKinds] = {
      "allreduce",      "reduce",  "broadcast",  "allgather",    "gather",
      "reduce_scatter", "scatter", "all_to_all", "all_to_all_v", "custom collective"};
  auto index = static_cast<std::size_t>(kind);
  return index < kKinds ? names[index] : "unknown collective";
}

Program::Program(int rank, int ranks, std::uint32_t slots, std::uint32_t scratch_slots,
                 std::uint32_t result_slot, std::uint32_t result_slots, const ProgramColumns& in,
                 Kind kind, std::uint32_t mark)
    : rank_(rank),
      ranks_(ranks),
      slots_(slots),
      scratch_slots_(scratch_slots),
      result_slot_(result_slot),
      result_slots_(result_slots),
      kind_(kind),
      mark_(mark) {
  const std::int64_t all = std::int64_t{slots} + scratch_slots;
  require(rank >= 0 && rank < ranks, "no such rank", 0);
  require(all <= kMostSlots, "too many slots", 0);
  require(scratch_slots == 0 || slots > 0, "scratch slots without slots", 0);
  require(result_slot + std::uint64_t{result_slots} <= slots, "result slots out of range", 0);
  require_equal_columns(in);
  for (std::size_t i = 0; i < in.lane_peer.size(); ++i) {
    auto direction = static_cast<Direction>(in.lane_direction[i]);
    require(direction <= Direction::kLocal, "unknown direction of lane", i);
    bool local = direction == Direction::kLocal;
    require(local ? in.lane_peer[i] == -1
                  : in.lane_peer[i] >= 0 && in.lane_peer[i] < ranks && in.lane_peer[i] != rank,
            "bad peer of lane", i);
    require(in.lane_channel[i] >= 0 && in.lane_channel[i] < kMostChannels, "bad channel of lane",
            i);
    if (!local) channels_ = std::max(channels_, in.lane_channel[i] + 1);
    lanes_.push_back({direction, in.lane_peer[i], in.lane_channel[i], 0, 0});
  }
  for (std::size_t i = 0; i < in.step_op.size(); ++i) {
    auto lane = static_cast<std::size_t>(in.step_lane[i]);
    require(lane < lanes_.size(), "bad lane of step", i);
    require(i == 0 || in.step_lane[i] >= in.step_lane[i - 1], "steps not grouped by lane", i);
    auto op = static_cast<Op>(in.step_op[i]);
    require(fits(lanes_[lane].direction, op), "op does not belong in its lane: step", i);
    require(in.step_count[i] >= 1, "bad count of step", i);
    require(in.step_slot[i] >= 0 && in.step_slot[i] + std::int64_t{in.step_count[i]} <= all,
            "bad slot of step", i);
    bool local = op == Op::kCopy || op == Op::kReduce;
    require(!local || (in.step_source_slot[i] >= 0 &&
                       in.step_source_slot[i] + std::int64_t{in.step_count[i]} <= all),
            "bad source slot of step", i);
    if (lanes_[lane].steps++ == 0) lanes_[lane].first_step = static_cast<std::uint32_t>(i);
    steps_.push_back({op, static_cast<std::uint32_t>(in.step_slot[i]),
                      static_cast<std::uint32_t>(local ? in.step_source_slot[i] : 0),
                      static_cast<std::uint32_t>(in.step_count[i]), 0, 0, false});
  }
  for (std::size_t i = 0; i < in.dependency_step.size(); ++i) {
    auto step = static_cast<std::size_t>(in.dependency_step[i]);
    auto on = static_cast<std::size_t>(in.dependency_on[i]);
    require(step < steps_.size() && on < steps_.size(), "bad dependency", i);
    require(i == 0 || in.dependency_step[i] >= in.dependency_step[i - 1], "dependencies not sorted",
            i);
    auto& waiting = steps_[step];
    auto& awaited = steps_[on];
    awaited.awaited = true;
    if (waiting.dependencies++ == 0) waiting.first_dependency = static_cast<std::uint32_t>(i);
    bool streaming = !is_local(waiting) && !is_local(awaited) && waiting.slot == awaited.slot &&
                     waiting.count == awaited.count;
    dependencies_.push_back({static_cast<std::uint32_t>(on), streaming});
  }
  for (const auto& lane : lanes_) {
    bool later = false;
    for (auto i = lane.first_step + lane.steps; i-- > lane.first_step;) {
      later = steps_[i].awaited |= later;
    }
  }
}

}  // namespace headrace
