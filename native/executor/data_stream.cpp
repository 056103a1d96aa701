#include "executor/data_stream.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {
namespace {

// A chunk that is still arriving is forwarded in pieces of at least this size: smaller ones cost
// a system call each without hiding noticeable time.
constexpr std::uint64_t kForwardBytes = 16 << 10;
// What one call may receive before other streams get their turn.
constexpr std::size_t kReceiveBudget = 256 << 10;
constexpr std::size_t kSendBudget = 1 << 20;
// A payload of at least this size is read to its place at once instead of through staging.
constexpr std::uint64_t kDirectBytes = 8 << 10;
// Read along with a direct payload: the next header and small payloads.
constexpr std::size_t kReadAhead = 4 << 10;

Header header_of(const Collective& collective, std::uint32_t lane, std::uint64_t bytes) {
  return {collective.epoch, collective.sequence,
          static_cast<std::uint32_t>(collective.program->lanes()[lane].channel),
          static_cast<std::uint32_t>(bytes)};
}

}  // namespace

struct DataStream::Batch {
  std::array<iovec, 32> parts;
  std::array<Header, 16> headers;
  std::size_t count = 0;
  std::size_t header_count = 0;
  std::size_t bytes = 0;

  bool full() const {
    return count + 2 > parts.size() || header_count == headers.size() || bytes >= kSendBudget;
  }
  void add(const void* data, std::size_t size) {
    if (size == 0) return;
    parts[count++] = {const_cast<void*>(data), size};
    bytes += size;
  }
};

void DataStream::add_send(std::shared_ptr<Collective> collective, std::uint32_t lane) {
  sends_.push_back({std::move(collective), lane});
}

void DataStream::add_receive(std::shared_ptr<Collective> collective, std::uint32_t lane) {
  receives_.push_back({std::move(collective), lane});
}

void DataStream::drop() {
  sends_.clear();
  receives_.clear();
  set_closed();  // perhaps in the middle of a frame: nothing more can be read or sent
}

// Leaves finished lanes and empty steps behind; returns whether there were any.
bool DataStream::trim(std::deque<LaneRef>& lanes) {
  bool any = false;
  while (!lanes.empty()) {
    auto& [collective, lane] = lanes.front();
    any |= collective->skip_empty(lane);
    if (!collective->lane_finished(lane)) return any;
    lanes.pop_front();
    any = true;
  }
  return any;
}

bool DataStream::progress() {
  bool sent = send_some();
  bool received = receive_some();
  return sent || received;
}

void DataStream::gather(Batch& batch) const {
  auto header_sent = header_sent_;
  for (const auto& [collective, lane] : sends_) {
    const auto& layout = collective->program->lanes()[lane];
    for (auto at = collective->position[lane]; at < layout.steps; ++at) {
      auto index = layout.first_step + at;
      const auto& state = collective->states[index];
      if (state.bytes == 0) {
        if (!collective->unblocked(index)) return;
        continue;
      }
      if (batch.full()) return;
      auto available = collective->allowed(index) - state.done;
      bool all = available == state.bytes - state.done;
      if (!all && available < kForwardBytes) return;
      auto& header = batch.headers[batch.header_count++];
      header = header_of(*collective, lane, state.bytes);
      batch.add(reinterpret_cast<const char*>(&header) + header_sent, sizeof header - header_sent);
      batch.add(state.data + state.done, available);
      if (!all) return;
      header_sent = 0;
    }
  }
}

void DataStream::commit(std::size_t sent) {
  while (sent > 0) {
    auto& [collective, lane] = sends_.front();
    collective->skip_empty(lane);
    if (collective->lane_finished(lane)) {
      sends_.pop_front();
      continue;
    }
    auto& state = collective->states[collective->current(lane)];
    auto header = std::min(sent, sizeof(Header) - header_sent_);
    header_sent_ += header;
    sent -= header;
    auto payload = std::min<std::uint64_t>(sent, state.bytes - state.done);
    state.done += payload;
    sent -= payload;
    if (state.done == state.bytes) {
      header_sent_ = 0;
      collective->pass(lane);
    }
  }
}

bool DataStream::send_some() {
  bool any = trim(sends_);
  while (can_write() && !sends_.empty()) {
    Batch batch;
    gather(batch);
    if (batch.count == 0) break;
    auto sent = send(batch.parts.data(), static_cast<int>(batch.count), batch.bytes);
    if (sent == 0) break;
    commit(sent);
    trim(sends_);
    any = true;
  }
  return any;
}

void DataStream::check(const LaneRef& expected) const {
  const auto& [collective, lane] = expected;
  auto bytes = collective->states[collective->current(lane)].bytes;
  auto wanted = header_of(*collective, lane, bytes);
  if (std::memcmp(&wanted, &incoming_, sizeof wanted) == 0) return;
  auto text = "rank " + std::to_string(peer()) + " sent ";
  if (incoming_.collective == wanted.collective && incoming_.epoch != wanted.epoch) {
    throw ProtocolError(text + "collective " + std::to_string(wanted.collective) + " of plan " +
                        std::to_string(incoming_.epoch) + ", which runs by plan " +
                        std::to_string(wanted.epoch) +
                        " here: the ranks did not change plans at the same call");
  }
  auto show = [](const Header& h) {
    return "collective " + std::to_string(h.collective) + " epoch " + std::to_string(h.epoch) +
           " channel " + std::to_string(h.lane) + " with " + std::to_string(h.length) + " bytes";
  };
  throw ProtocolError(text + show(incoming_) + " where " + show(wanted) +
                      " was expected: do all ranks make the same calls with the same sizes?");
}

bool DataStream::held_back() const {
  const auto& [collective, lane] = receives_.front();
  auto index = collective->current(lane);
  const auto& state = collective->states[index];
  if (state.bytes == 0) return !collective->unblocked(index);
  if (!in_payload_ || staged() == 0) return false;
  auto room = collective->allowed(index) - state.done;
  if (collective->step(index).op == Op::kReceiveReduce) room -= room % collective->element_size;
  return room == 0;
}

// Uses what is staged; returns whether anything was used.
bool DataStream::consume() {
  bool any = false;
  for (;;) {
    any |= trim(receives_);
    // Frames of a collective not yet submitted here stay where they are.
    if (receives_.empty()) return any;
    auto& [collective, lane] = receives_.front();
    auto index = collective->current(lane);
    auto& state = collective->states[index];
    if (state.bytes == 0) return any;  // an empty step that is still blocked: no frame is its own
    if (!in_payload_) {
      if (!take_header(incoming_)) return any;
      check(receives_.front());
      in_payload_ = true;
      any = true;
    }
    auto usable = std::min<std::uint64_t>(staged(), collective->allowed(index) - state.done);
    if (collective->step(index).op == Op::kReceiveReduce) {
      usable -= usable % collective->element_size;
      if (usable == 0) return any;
      collective->kernel(state.data + state.done, front(), usable / collective->element_size);
    } else {
      if (usable == 0) return any;
      std::memcpy(state.data + state.done, front(), usable);
    }
    use(usable);
    state.done += usable;
    any = true;
    if (state.done < state.bytes) return any;
    in_payload_ = false;
    collective->pass(lane);
  }
}

// Reads from the socket to where the plan wants it; returns whether anything came.
bool DataStream::read_payload(std::size_t& budget) {
  std::size_t limit = kStagingBytes;
  if (!receives_.empty()) {
    auto& [collective, lane] = receives_.front();
    auto index = collective->current(lane);
    auto& state = collective->states[index];
    bool direct = collective->step(index).op == Op::kReceive && state.bytes >= kDirectBytes;
    if (direct && !in_payload_ && staged() < sizeof(Header)) {
      limit = sizeof(Header) - staged();  // the payload after it goes straight to its place
    } else if (direct && in_payload_ && staged() == 0) {
      auto room = collective->allowed(index) - state.done;
      if (room == 0) return false;
      bool rest = room == state.bytes - state.done;
      iovec parts[2] = {{state.data + state.done, room}, staging_part(kReadAhead)};
      auto received = receive(parts, rest ? 2 : 1, room + (rest ? parts[1].iov_len : 0));
      auto payload = std::min<std::uint64_t>(received, room);
      state.done += payload;
      add_staged(received - payload);
      budget -= std::min(budget, received);
      if (state.done == state.bytes) {
        in_payload_ = false;
        collective->pass(lane);
      }
      return received > 0;
    }
  }
  auto before = staged();
  // Nothing is waiting for this stream, or what is staged is blocked: leave the rest with the
  // kernel, which holds the sender back.
  if (receives_.empty() || before >= kStagingBytes / 2) return false;
  bool came = fill(limit);
  budget -= std::min(budget, staged() - before);
  return came;
}

bool DataStream::receive_some() {
  bool any = consume();
  std::size_t budget = kReceiveBudget;
  while (can_read() && budget > 0 && read_payload(budget)) {
    any = true;
    consume();
  }
  return any;
}

}  // namespace headrace
