#include "transport/shm/connection.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/copy.hpp"

namespace headrace::shm {
namespace {

// A large piece is consumed in parts, so that the writer can go on before the reader is done.
constexpr std::size_t kReleaseBytes = 32 << 10;
// Smaller parts are copied through the ring: they are in the caches.
constexpr std::size_t kMinSharedBytes = 32 << 10;

}  // namespace

Connection::Connection(std::shared_ptr<Doorbell> doorbell, RingMemory memory, Options options)
    : doorbell_(std::move(doorbell)),
      options_(options),
      memory_(std::move(memory)),
      out_(memory_, options.first ? 0 : 1),
      owner_(memory_.buffer_queue(options.first ? 0 : 1), *doorbell_, options.number),
      in_(memory_, options.first ? 1 : 0),
      reader_(memory_.buffer_queue(options.first ? 1 : 0)) {}

std::optional<Clock::time_point> Connection::closed_at() const {
  return closed_at_ ? closed_at_ : doorbell_->closed_at();
}

void Connection::close() {
  owner_.revoke();
  if (!closed_at_) closed_at_ = Clock::now();
}

void Connection::abandon() {
  owner_.abandon();
  doorbell_->abandon();
}

// ---- sending

std::size_t Connection::send(const iovec* parts, int count, std::uint32_t zero_copy) {
  if (closed_at()) return 0;
  owner_.drop_ended();
  auto known = held_bytes_;  // these were accepted in an earlier call
  std::size_t sent = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    auto skipped = std::min(known, parts[i].iov_len);
    known -= skipped;
    auto* from = static_cast<const std::byte*>(parts[i].iov_base) + skipped;
    auto bytes = parts[i].iov_len - skipped;
    if (bytes == 0) continue;
    bool shareable = zero_copy >> i & 1 && skipped == 0 && bytes >= kMinSharedBytes;
    auto shared = shareable ? share(from, bytes) : std::nullopt;
    auto accepted = shared ? *shared : write(from, bytes);
    any |= accepted > 0;
    if (held_.empty()) sent += accepted;
    if (accepted < bytes) break;
  }
  sent += released();
  if (sent > 0) count_sent(sent);
  if (any && (out_.wakes_reader() || options_.always_rings)) doorbell_->ring();
  return sent;
}

void Connection::hold(std::size_t bytes, bool shared) {
  held_.push_back({bytes, shared});
  held_bytes_ += bytes;
}

std::size_t Connection::write(const std::byte* from, std::size_t bytes) {
  auto written = std::min(bytes, out_.room(bytes));
  out_.write(from, written);
  if (!held_.empty() && written > 0) hold(written, false);
  return written;
}

std::optional<std::size_t> Connection::share(const std::byte* from, std::size_t bytes) {
  auto region = region_of(from, bytes);
  if (!region) return std::nullopt;
  if (owner_.full()) return 0;
  if (!owner_.post(out_.tail(), region, from, bytes)) return std::nullopt;
  hold(bytes, true);
  return bytes;
}

// Bytes of `held_` that the caller may overwrite now.
std::size_t Connection::released() {
  if (held_.empty()) return 0;
  auto back = owner_.reclaim();
  std::size_t bytes = 0;
  auto next = held_.begin();
  for (; next != held_.end() && (!next->shared || back > 0); ++next) {
    if (next->shared) --back;
    bytes += next->bytes;
  }
  held_.erase(held_.begin(), next);
  held_bytes_ -= bytes;
  return bytes;
}

// ---- receiving

std::size_t Connection::receive(std::byte* into, std::size_t bytes, const Hints& hints) {
  std::size_t received = 0;
  while (received < bytes) {
    auto came = peek(1, 0);
    if (came.empty()) break;
    auto piece = std::min({came.size(), bytes - received, kReleaseBytes});
    if (hints.past_caches) {
      copy_past_caches(into + received, came.data(), piece);
    } else {
      std::memcpy(into + received, came.data(), piece);
    }
    if (!use(piece)) break;
    received += piece;
  }
  return received;
}

std::span<const std::byte> Connection::peek(std::size_t least, std::size_t) {
  reader_.drop_ended();
  if (in_ring() < least) in_.refresh();
  auto came = in_ring();
  return reader_.is_next(in_.head()) ? shared_span() : in_.span().first(came);
}

std::span<const std::byte> Connection::shared_span() {
  auto bytes = reader_.span();
  if (bytes.empty()) {
    doorbell_->read();  // the descriptor of its region was sent first
    for (auto& [number, memory] : doorbell_->take(options_.number)) {
      reader_.add_region(number, std::move(memory));
    }
    bytes = reader_.span();
  }
  return bytes;
}

bool Connection::use(std::size_t bytes) {
  if (!reader_.is_next(in_.head())) {
    in_.use(bytes);
    if (in_.freed_enough()) wake_writer();
  } else if (!reader_.use(bytes)) {
    close();
    return false;
  } else if (!reader_.is_next(in_.head())) {
    wake_writer();
  }
  count_received(bytes);
  return true;
}

// ---- sleeping

void Connection::wake_writer() {
  if (in_.wakes_writer()) doorbell_->ring();
}

void Connection::ready(bool readable, bool, bool hangup) {
  if (readable || hangup) doorbell_->read();
}

void Connection::announce_sleep(bool asleep) {
  in_.announce_sleep(asleep);
  out_.announce_sleep(asleep && (out_.held_back() || owner_.pending()));
}

bool Connection::changed() {
  bool came = in_.changed() || reader_.changed();
  return out_.changed() || owner_.changed() || came;
}

std::vector<std::unique_ptr<headrace::Connection>> connections_of(Fd socket, const Fd& memory,
                                                                  std::size_t count, bool first) {
  auto doorbell = std::make_shared<Doorbell>(std::move(socket));
  auto bytes = RingMemory::size_of(memory);
  auto others = count - 1;
  const auto control = control_bytes();
  if (bytes <= control || others == 0 || (bytes - control) % others != 0) {
    throw CommunicationError("shared memory: " + std::to_string(bytes) +
                             " bytes are not those of " + std::to_string(count) + " connections");
  }
  std::vector<std::unique_ptr<headrace::Connection>> connections;
  std::size_t offset = 0;
  for (std::size_t number = 0; number < count; ++number) {
    auto part = number == 0 ? control : (bytes - control) / others;
    connections.push_back(std::make_unique<Connection>(
        doorbell, RingMemory(memory, offset, part),
        Connection::Options{.number = number, .first = first, .always_rings = number == 0}));
    offset += part;
  }
  return connections;
}

}  // namespace headrace::shm
