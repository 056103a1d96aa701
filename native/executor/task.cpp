#include "executor/task.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "transport/copy.hpp"

namespace headrace {
namespace {

// A collective over more bytes than this writes more than stays in the caches until it is read.
constexpr std::uint64_t kBeyondCaches = 8 << 20;

// Upper bound of user addresses, which have 47 bits, or 56 at most.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

bool combines(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduce || kind == Kind::kReduceScatter ||
         kind == Kind::kCustom;
}

// Without a reduction, type and operator are arbitrary and left out.
Signature signature_of(const Program& program, DataType type, Operator op, bool average) {
  auto bits = static_cast<unsigned>(program.kind()) | (program.mark() & 7) << 13;
  if (combines(program.kind())) {
    bits |= static_cast<unsigned>(type) << 4 | static_cast<unsigned>(op) << 9 |
            static_cast<unsigned>(average) << 12;
  }
  return static_cast<Signature>(bits);
}

}  // namespace

std::string describe(Signature signature) {
  auto kind = static_cast<Kind>(signature & 15);
  std::string text = name_of(kind);
  if (!combines(kind)) return text;
  bool average = signature >> 12 & 1;
  return text + " of " + name_of(static_cast<DataType>(signature >> 4 & 31)) + " by " +
         (average ? "average" : name_of(static_cast<Operator>(signature >> 9 & 7)));
}

// Throws std::invalid_argument unless the segments are possible memory with as many slots as the
// program. Called before anything of their size is allocated.
void Collective::check(const std::vector<Segment>& segments) const {
  std::uint64_t slots = 0;
  for (const auto& [address, elements, blocks, chunks] : segments) {
    std::uint64_t cuts = 0;
    std::uint64_t bytes = 0;
    bool fits = !__builtin_mul_overflow(elements, std::uint64_t{chunks}, &cuts) &&
                !__builtin_mul_overflow(elements, std::uint64_t{blocks} * element_size, &bytes) &&
                address <= kMostBytes && bytes <= kMostBytes && (address != 0 || bytes == 0);
    if (!fits) {
      throw std::invalid_argument("a segment of " + std::to_string(blocks) + " blocks of " +
                                  std::to_string(elements) + " elements at address " +
                                  std::to_string(address) + " is not valid memory");
    }
    auto more = std::uint64_t{blocks} * chunks;
    slots = std::min(more, std::uint64_t{program->slots()} + 1) + slots;
    if (slots > program->slots()) break;
  }
  if (slots == program->slots()) return;
  auto found = slots < program->slots() ? std::to_string(slots) : "more";
  throw std::invalid_argument("the segments make " + found + " slots, the program has " +
                              std::to_string(program->slots()));
}

void Collective::cut(const std::vector<Segment>& segments) {
  slots_.clear();
  for (const auto& segment : segments) {
    auto* block = reinterpret_cast<std::byte*>(segment.address);
    for (std::uint32_t b = 0; b < segment.blocks; ++b) {
      std::uint64_t begin = 0;
      for (std::uint64_t k = 0; k < segment.chunks; ++k) {
        auto end = (k + 1) * segment.elements / segment.chunks;
        slots_.push_back({block + begin * element_size, (end - begin) * element_size});
        begin = end;
      }
      block += segment.elements * element_size;
    }
  }
}

// Bytes of `count` slots from `first` on, which must be contiguous.
Collective::Slot Collective::range(std::uint32_t first, std::uint32_t count) const {
  Slot whole = slots_[first];
  for (std::uint32_t i = 1; i < count; ++i) {
    const auto& next = slots_[first + i];
    if (next.data != whole.data + whole.bytes && next.bytes > 0) {
      throw std::invalid_argument("slots " + std::to_string(first) + " to " +
                                  std::to_string(first + i) + " are one step but not contiguous");
    }
    whole.bytes += next.bytes;
  }
  return whole;
}

void Collective::bind(const std::vector<Segment>& segments, DataType data_type, Operator op,
                      bool averaged) {
  type = data_type;
  element_size = static_cast<std::uint32_t>(element_bytes(data_type));
  kernel = reduce_kernel(data_type, op);
  average = averaged;
  signature = signature_of(*program, data_type, op, averaged);
  done = false;
  error.clear();
  times.clear();
  check(segments);
  cut(segments);
  bytes = 0;
  for (const auto& slot : slots_) bytes += slot.bytes;
  // A scratch slot holds one of several data slots at a time, whichever their sizes.
  std::uint64_t scratch_bytes = 0;
  for (std::uint32_t k = 0; k < program->scratch_slots(); ++k) {
    scratch_bytes += slots_[k % program->slots()].bytes;
  }
  scratch_.resize(scratch_bytes);
  for (std::uint32_t k = 0; k < program->scratch_slots(); ++k) {
    auto* end = k == 0 ? scratch_.data() : slots_.back().data + slots_.back().bytes;
    slots_.push_back({end, slots_[k % program->slots()].bytes});
  }
  const auto& steps = program->steps();
  states.assign(steps.size(), {});
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    auto target = range(step.slot, step.count);
    states[i].data = target.data;
    states[i].bytes = target.bytes;
    if (target.bytes > std::numeric_limits<std::uint32_t>::max()) {
      throw std::invalid_argument("a step moves over 4 GiB; use a program with more chunks");
    }
    bool reduces = step.op == Op::kReduce || step.op == Op::kReceiveReduce;
    if (reduces && kernel == nullptr) {
      throw std::invalid_argument("this operator has no meaning for this data type");
    }
    if (step.op == Op::kCopy || step.op == Op::kReduce) {
      auto source = range(step.source_slot, step.count);
      if (source.bytes != target.bytes) {
        throw std::invalid_argument("a local step joins slots of " + std::to_string(source.bytes) +
                                    " and " + std::to_string(target.bytes) + " bytes");
      }
      states[i].source = source.data;
    }
  }
  const auto& lanes = program->lanes();
  position.assign(lanes.size(), 0);
  lanes_left = static_cast<std::uint32_t>(
      std::count_if(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.steps > 0; }));
}

std::uint64_t Collective::allowed(std::uint32_t index) const {
  auto bytes = states[index].bytes;
  for (const auto& dependency : program->dependencies(step(index))) {
    const auto& awaited = states[dependency.on];
    if (dependency.streaming) {
      bytes = std::min(bytes, awaited.done);
    } else if (!awaited.passed) {
      return 0;
    }
  }
  return bytes;
}

bool Collective::unblocked(std::uint32_t index) const {
  auto awaited = program->dependencies(step(index));
  return std::all_of(awaited.begin(), awaited.end(),
                     [this](const Dependency& d) { return states[d.on].passed; });
}

void Collective::pass(std::uint32_t lane) {
  auto index = current(lane);
  states[index].passed = true;
  if (!times.empty()) {
    auto& [began_ns, passed_ns] = times[index];
    passed_ns = now_ns();
    if (began_ns == 0) began_ns = passed_ns;  // it moved nothing
  }
  if (++position[lane] == program->lanes()[lane].steps) --lanes_left;
}

bool Collective::skip_empty(std::uint32_t lane) {
  auto before = position[lane];
  while (!lane_finished(lane) && states[current(lane)].bytes == 0 && unblocked(current(lane))) {
    pass(lane);
  }
  return position[lane] != before;
}

void Collective::copy(const StepState& state) const {
  if (state.bytes == 0) return;
  auto apart = state.source < state.data ? state.data - state.source : state.source - state.data;
  if (past_caches() && static_cast<std::uint64_t>(apart) >= state.bytes) {
    copy_past_caches(state.data, state.source, state.bytes);
  } else {
    std::memmove(state.data, state.source, state.bytes);
  }
}

bool Collective::past_caches() const { return bytes >= kBeyondCaches; }

bool Collective::run_local() {
  bool any = false;
  const auto& lanes = program->lanes();
  for (std::uint32_t l = 0; l < lanes.size(); ++l) {
    if (lanes[l].direction != Direction::kLocal) continue;
    while (!lane_finished(l) && unblocked(current(l))) {
      auto index = current(l);
      auto& state = states[index];
      attempt(index);
      if (step(index).op == Op::kReduce) {
        kernel(state.data, state.data, state.source, state.bytes / element_size);
      } else {
        copy(state);
      }
      state.done = state.bytes;
      pass(l);
      any = true;
    }
  }
  return any;
}

void Collective::finish_result() {
  if (!average) return;
  for (std::uint32_t k = 0; k < program->result_slots(); ++k) {
    const auto& [data, size] = slots_[program->result_slot() + k];
    divide(data, size / element_size, type, program->ranks());
  }
}

std::string Collective::describe() const {
  auto text = "collective " + std::to_string(sequence) + " (" + headrace::describe(signature) + ")";
  const auto& lanes = program->lanes();
  // A lane blocked by its dependencies waits for this rank, not for its peer.
  auto waits_for_peer = [this](std::uint32_t lane) {
    auto index = current(lane);
    return states[index].bytes == 0 ? unblocked(index) : allowed(index) > states[index].done;
  };
  for (std::uint32_t l = 0; l < lanes.size(); ++l) {
    if (lanes[l].direction != Direction::kReceive || lane_finished(l) || !waits_for_peer(l))
      continue;
    return text + " waiting to receive from rank " + std::to_string(lanes[l].peer) + " (step " +
           std::to_string(position[l]) + " of " + std::to_string(lanes[l].steps) + ")";
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    if (position[l] == lanes[l].steps || lanes[l].direction != Direction::kSend) continue;
    return text + " waiting to send to rank " + std::to_string(lanes[l].peer) + " (step " +
           std::to_string(position[l]) + " of " + std::to_string(lanes[l].steps) + ")";
  }
  return text;
}

std::string Collective::report() const {
  auto text = "collective " + std::to_string(sequence) + ": " + headrace::describe(signature) +
              ", plan " + std::to_string(epoch) + ", priority " +
              std::to_string(static_cast<int>(priority)) + "; lanes:";
  const auto& lanes = program->lanes();
  for (std::uint32_t l = 0; l < lanes.size(); ++l) {
    const auto& lane = lanes[l];
    static constexpr const char* names[] = {"send to rank ", "receive from rank ", "local"};
    text += "\n    ";
    text += names[static_cast<std::size_t>(lane.direction)];
    if (lane.direction != Direction::kLocal) {
      text += std::to_string(lane.peer) + " on channel " + std::to_string(lane.channel);
    }
    text += ": " + std::to_string(position[l]) + " of " + std::to_string(lane.steps) + " steps";
    if (lane_finished(l)) continue;
    auto index = current(l);
    const auto& state = states[index];
    text += ", the next has " + std::to_string(state.done) + " of " + std::to_string(state.bytes) +
            " bytes";
    auto possible = allowed(index);
    bool blocked = state.bytes == 0 ? !unblocked(index) : possible == state.done;
    text += blocked ? ", held back by other lanes" : ", waits for the peer";
  }
  return text;
}

std::string Message::describe() const {
  auto with = peer < 0 ? std::string("any rank") : "rank " + std::to_string(peer);
  return std::string(is_send ? "send to " : "receive from ") + with + " (tag " +
         std::to_string(tag) + ", " + std::to_string(bytes) + " bytes)";
}

}  // namespace headrace
