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

// A peer died, a deadline passed, or a stream broke.
class CommunicationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The peer sent what the plan does not expect.
class ProtocolError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What went over a connection; may be read from any thread.
struct Traffic {
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> sends{0};  // calls that sent something
  std::atomic<std::uint64_t> received_bytes{0};

  // One thread at a time writes, so no locked instruction is needed.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

// How to receive well.
struct Hints {
  std::size_t ahead = 0;     // bytes that may be fetched with the same call, of what follows
  bool past_caches = false;  // the destination is a part of more than caches hold
};

class Connection {
 public:
  virtual ~Connection() = default;

  // Goes on with what has to be said before the first byte; returns whether that is done, as it has
  // to be before anything is sent or received. May throw ProtocolError.
  virtual bool open() { return true; }
  // Takes what can be taken of the parts, in order; returns how many bytes (0: none now). They may
  // be overwritten afterwards. What was not taken comes first at the next call, with more after it
  // or not. Bit k of `lendable`: nobody here waits for part k, which may be taken late from where
  // it is.
  virtual std::size_t send(const iovec* parts, int count, std::uint32_t lendable) = 0;
  // Moves up to `bytes` of what has come to `into`; returns how many.
  virtual std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) = 0;
  // What has come, in one piece, still to be used. Where that is less than `least`, it first
  // fetches, until there are `most` at the utmost. Valid until the next call.
  virtual std::span<const std::byte> peek(std::size_t least, std::size_t most) = 0;
  // Leaves the first bytes of what was peeked behind. False: the peer had taken them back, and the
  // connection is closed.
  virtual bool use(std::size_t bytes) = 0;
  // Whether bytes have come that were not used: they are still to be had if the peer is gone.
  virtual bool holds_bytes() const = 0;

  // What to watch for events, and what they were. An event comes once (edge-triggered).
  virtual int fd() const = 0;
  virtual void ready(bool readable, bool writable, bool hangup) = 0;
  // Tells the peer whether we are going to sleep until an event. Whoever does so looks for `news`
  // afterwards, which came too early to make an event.
  virtual void announce_sleep(bool asleep) = 0;
  virtual bool news() = 0;  // may throw ProtocolError
  // Whether bytes arrive without an event, so that looking for a while before sleeping pays.
  virtual bool shares_memory() const = 0;

  // When the connection ended, if it has.
  virtual std::optional<Clock::time_point> closed_at() const = 0;
  // Neither sends nor receives from now on.
  virtual void close() = 0;
  // Lets go of the socket without a word (in a forked child, where it is another process's).
  virtual void abandon() = 0;
  virtual const Traffic& traffic() const = 0;
};

// What connections have in common: the socket, its end, the counters.
class SocketConnection : public Connection {
 public:
  explicit SocketConnection(Fd fd) : fd_(std::move(fd)) {}

  int fd() const final { return fd_.get(); }
  std::optional<Clock::time_point> closed_at() const final { return closed_at_; }
  void close() override {
    if (!closed_at_) closed_at_ = Clock::now();
  }
  void abandon() override { fd_.reset(); }
  const Traffic& traffic() const final { return traffic_; }

 protected:
  void count_sent(std::size_t bytes) {
    Traffic::add(traffic_.sent_bytes, bytes);
    Traffic::add(traffic_.sends, 1);
  }
  void count_received(std::size_t bytes) { Traffic::add(traffic_.received_bytes, bytes); }

 private:
  Fd fd_;
  std::optional<Clock::time_point> closed_at_;
  Traffic traffic_;
};

// One end of a connection that was made, before anything is sent.
struct Link {
  Fd fd;  // a connected, non-blocking stream socket
  int peer;
  std::int32_t channel;  // kControlChannel, kPointToPointChannel, or a data channel
  Fd memory;             // shared with the peer, which is on this host; else none
  std::string key{};     // of this connection alone, if it goes over TLS
};

}  // namespace headrace
