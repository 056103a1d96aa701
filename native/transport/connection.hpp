// A connection to one peer: an ordered, reliable stream of bytes each way that never blocks.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "transport/fd.hpp"

namespace headrace {

using Clock = std::chrono::steady_clock;

// Thrown when a peer died, a deadline passed, or a stream broke.
class CommunicationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown when a peer sent what the plan does not expect.
class ProtocolError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Traffic counters of a connection; readable from any thread.
struct Traffic {
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> sends{0};  // calls that sent something
  std::atomic<std::uint64_t> received_bytes{0};

  // Single writer, so no locked instruction is needed.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

// Performance hints for `receive`.
struct Hints {
  std::size_t ahead = 0;     // bytes of what follows that the same call may fetch
  bool past_caches = false;  // the destination belongs to a buffer larger than the caches
};

class Connection {
 public:
  virtual ~Connection() = default;

  // Continues the connection's handshake, if it has one; returns whether it is complete. Must be
  // complete before anything is sent or received. May throw ProtocolError.
  virtual bool open() { return true; }
  // Sends what it can of the parts, in order; returns the number of bytes that are done and may be
  // overwritten (0: none now). The rest must come first in the next call, with or without more
  // after it. Bit k of `zero_copy`: part k may be read late, in place: no step here waits for it.
  virtual std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) = 0;
  // Moves up to `bytes` received bytes to `into`; returns how many.
  virtual std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) = 0;
  // Received bytes that are not used yet, contiguous. If there are fewer than `least`, fetches
  // first, up to `most` in all. Valid until the next call.
  virtual std::span<const std::byte> peek(std::size_t least, std::size_t most) = 0;
  // Consumes the first of the peeked bytes. Returns false if the peer had revoked them; the
  // connection is closed then.
  virtual bool use(std::size_t bytes) = 0;
  // Whether unused received bytes are left; they stay valid after the peer's end.
  virtual bool holds_bytes() const = 0;

  // The descriptor to watch for events, and the events that came (edge-triggered).
  virtual int fd() const = 0;
  virtual void ready(bool readable, bool writable, bool hangup) = 0;
  // Publishes whether this side is about to sleep until an event. Check `changed` afterwards: what
  // came before the announcement raised no event.
  virtual void announce_sleep(bool asleep) = 0;
  virtual bool changed() = 0;  // may throw ProtocolError
  // Whether bytes arrive without an event, so that spinning before sleeping pays.
  virtual bool shares_memory() const = 0;

  // Time at which the connection ended, if it has.
  virtual std::optional<Clock::time_point> closed_at() const = 0;
  // Stops sending and receiving.
  virtual void close() = 0;
  // Closes the socket without notifying the peer (in a forked child the connection is the
  // parent's).
  virtual void abandon() = 0;
  virtual const Traffic& traffic() const = 0;
};

// Base of all connections: counters.
class CountingConnection : public Connection {
 public:
  const Traffic& traffic() const final { return traffic_; }

 protected:
  void count_sent(std::size_t bytes) {
    Traffic::add(traffic_.sent_bytes, bytes);
    Traffic::add(traffic_.sends, 1);
  }
  void count_received(std::size_t bytes) { Traffic::add(traffic_.received_bytes, bytes); }

 private:
  Traffic traffic_;
};

// Base of connections with a socket of their own: socket, end of the connection.
class SocketConnection : public CountingConnection {
 public:
  explicit SocketConnection(Fd fd) : fd_(std::move(fd)) {}

  int fd() const final { return fd_.get(); }
  std::optional<Clock::time_point> closed_at() const final { return closed_at_; }
  void close() override {
    if (!closed_at_) closed_at_ = Clock::now();
  }
  void abandon() override { fd_.reset(); }

 private:
  Fd fd_;
  std::optional<Clock::time_point> closed_at_;
};

// One end of an established connection, before anything is sent; with memory, of all connections
// to a peer on this host.
struct Link {
  Fd fd;  // a connected, non-blocking stream socket
  int peer;
  std::int32_t channel;  // kControlChannel, kPointToPointChannel, or a data channel
  Fd memory;             // shared with a peer on this host; else none. The channel is control's
  std::string key{};     // of this connection alone, if it uses TLS
};

}  // namespace headrace
