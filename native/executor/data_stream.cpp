#include "executor/data_stream.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace headrace {
namespace {

// Minimum piece in which a chunk that is still arriving is forwarded: smaller ones cost a system
// call each without hiding noticeable time.
constexpr std::uint64_t kForwardBytes = 16 << 10;
// Limit of bytes received per turn of a stream.
constexpr std::size_t kReceiveBudget = 256 << 10;
constexpr std::size_t kSendBudget = 1 << 20;
// Payloads of at least this size are read to their destination, without staging.
constexpr std::uint64_t kDirectBytes = 8 << 10;
constexpr std::size_t kLargestElement = 16;
// Read-ahead with a direct payload: the next header and small payloads.
constexpr std::size_t kReadAhead = 4 << 10;

Header header_of(const Collective& collective, std::uint32_t lane, std::uint64_t bytes) {
  return {collective.epoch, collective.sequence,
          static_cast<std::uint32_t>(collective.program->lanes()[lane].channel) |
              std::uint32_t{collective.signature} << 16,
          static_cast<std::uint32_t>(bytes)};
}

std::string described(const Header& header) {
  return "collective " + std::to_string(header.collective) + " (" +
         describe(static_cast<Signature>(header.lane >> 16)) + ", plan " +
         std::to_string(header.epoch) + ", channel " + std::to_string(header.lane & 0xffff) +
         ") with " + std::to_string(header.length) + " bytes";
}

}  // namespace

struct DataStream::Batch {
  std::array<iovec, 32> parts;
  std::array<Header, 16> headers;
  std::size_t count = 0;
  std::size_t header_count = 0;
  std::size_t bytes = 0;
  std::uint32_t zero_copy = 0;  // bit per part

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
  connection().close();  // perhaps in the middle of a frame: nothing more can be read or sent
}

// Removes finished lanes and empty steps; returns whether there were any.
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

bool DataStream::progress(const Unlock& unlock) {
  bool sent = send_some(unlock);
  bool received = receive_some(unlock);
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
      collective->attempt(index);
      auto& header = batch.headers[batch.header_count++];
      header = header_of(*collective, lane, state.bytes);
      batch.add(reinterpret_cast<const char*>(&header) + header_sent, sizeof header - header_sent);
      bool whole = state.done == 0 && all;
      if (whole && !collective->step(index).awaited)
        batch.zero_copy |= std::uint32_t{1} << batch.count;
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

bool DataStream::send_some(const Unlock& unlock) {
  bool any = trim(sends_);
  while (!sends_.empty()) {
    Batch batch;
    gather(batch);
    if (batch.count == 0) break;
    auto sent = unlock.during(batch.bytes, [&] {
      return connection().send(batch.parts.data(), static_cast<int>(batch.count), batch.zero_copy);
    });
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
  bool same_call = incoming_.collective == wanted.collective;
  if (same_call && incoming_.epoch != wanted.epoch) {
    throw ProtocolError(text + "collective " + std::to_string(wanted.collective) + " of plan " +
                        std::to_string(incoming_.epoch) + ", which runs by plan " +
                        std::to_string(wanted.epoch) +
                        " here: the ranks did not change plans at the same call");
  }
  throw ProtocolError(text + described(incoming_) + " where " + described(wanted) +
                      " was expected: do all ranks make the same calls with the same sizes?");
}

void DataStream::check_unexpected(std::uint32_t started) {
  if (in_payload_) return;
  auto came = connection().peek(sizeof(Header), sizeof(Header));
  if (came.size() < sizeof(Header)) return;
  Header header;
  std::memcpy(&header, came.data(), sizeof header);
  // Sequence numbers wrap around.
  bool begun = static_cast<std::int32_t>(header.collective - started) < 0;
  bool wanted =
      !receives_.empty() &&
      static_cast<std::int32_t>(header.collective - receives_.front().collective->sequence) >= 0;
  if (!begun || wanted) return;
  throw ProtocolError("rank " + std::to_string(peer()) + " sent " + described(header) +
                      ", of which nothing was expected from it: do all ranks make the same calls "
                      "with the same sizes?");
}

bool DataStream::held_back() const {
  const auto& [collective, lane] = receives_.front();
  if (collective->lane_finished(lane)) return false;  // its last step used up the budget
  auto index = collective->current(lane);
  const auto& state = collective->states[index];
  if (state.bytes == 0) return !collective->unblocked(index);
  if (!in_payload_ || !connection().holds_bytes()) return false;
  auto room = collective->allowed(index) - state.done;
  if (collective->step(index).op == Op::kReceiveReduce) room -= room % collective->element_size;
  return room == 0;
}

// Moves a piece of received data to its destination; returns whether anything progressed. Frames of
// a collective not yet submitted here stay unread, which is the flow control of the sender.
bool DataStream::receive_piece(std::size_t& budget, const Unlock& unlock) {
  bool any = trim(receives_);
  if (receives_.empty()) return any;
  auto& [collective, lane] = receives_.front();
  auto index = collective->current(lane);
  auto& state = collective->states[index];
  if (state.bytes == 0) return any;  // a blocked empty step has no frame
  bool reduces = collective->step(index).op == Op::kReceiveReduce;
  if (!in_payload_) {
    // A large payload is read to its destination, so nothing of it is fetched with the header.
    bool direct = !reduces && state.bytes >= kDirectBytes;
    if (!take_header(incoming_, direct ? sizeof(Header) : kFetchBytes)) return any;
    check(receives_.front());
    in_payload_ = true;
    any = true;
  }
  auto room = std::min<std::uint64_t>(collective->allowed(index) - state.done, budget);
  std::size_t moved = 0;
  collective->attempt(index);
  if (!reduces) {
    if (room == 0) return any;
    bool rest = room == state.bytes - state.done;
    moved = unlock.during(room, [&] {
      return connection().receive(
          state.data + state.done, room,
          {.ahead = rest ? kReadAhead : 0, .past_caches = collective->past_caches()});
    });
  } else {
    moved = unlock.during(room, [&] { return receive_and_reduce(*collective, index, room); });
  }
  if (moved == 0) return any;
  state.done += moved;
  budget -= moved;
  if (state.done == state.bytes) {
    in_payload_ = false;
    collective->pass(lane);
  }
  return true;
}

// Returns the number of bytes received and reduced, at most `most`.
std::size_t DataStream::receive_and_reduce(const Collective& collective, std::uint32_t index,
                                           std::uint64_t most) {
  auto came = connection().peek(collective.element_size, kFetchBytes);
  auto bytes = std::min<std::size_t>(came.size(), most);
  bytes -= bytes % collective.element_size;
  if (bytes == 0) return 0;
  const auto& state = collective.states[index];
  auto* target = state.data + state.done;
  collective.kernel(target, target, came.data(), bytes / collective.element_size);
  return connection().use(bytes) ? bytes : 0;
}

bool DataStream::receive_some(const Unlock& unlock) {
  bool any = false;
  std::size_t budget = kReceiveBudget;
  while (budget >= kLargestElement && receive_piece(budget, unlock)) any = true;
  return any;
}

}  // namespace headrace
