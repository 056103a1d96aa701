// A connection between ranks of one host: a shared memory ring in each direction, and the doorbell
// of the two ranks. Large parts in memory that the peer can map (see region.hpp) are not copied:
// the peer reads them in place.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/connection.hpp"
#include "transport/shm/doorbell.hpp"
#include "transport/shm/ring.hpp"
#include "transport/shm/shared_buffer.hpp"

namespace headrace::shm {

class Connection final : public CountingConnection {
 public:
  struct Options {
    std::size_t number = 0;  // of the connection, the same at both ends
    bool first = false;      // true at exactly one of the two ends
    // Whether every send rings: the peer's reader may sleep at any time, without an announcement.
    bool always_rings = false;
  };

  Connection(std::shared_ptr<Doorbell> doorbell, RingMemory memory, Options options);
  ~Connection() override { owner_.revoke(); }

  std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override;
  bool holds_bytes() const override { return in_.has_unread(); }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool asleep) override;
  bool changed() override;
  bool shares_memory() const override { return true; }
  int fd() const override { return doorbell_->fd(); }
  std::optional<Clock::time_point> closed_at() const override;
  void close() override;
  void abandon() override;

 private:
  // Accepted bytes that the caller must not overwrite yet, or that follow such bytes.
  struct Held {
    std::size_t bytes;
    bool shared;
  };

  std::size_t write(const std::byte* from, std::size_t bytes);
  // Returns the bytes shared (all or none), or no value if they must be written to the ring
  // instead.
  std::optional<std::size_t> share(const std::byte* from, std::size_t bytes);
  void hold(std::size_t bytes, bool shared);
  std::size_t released();

  std::size_t in_ring() { return reader_.bytes_before_next(in_.head(), in_.tail()); }
  std::span<const std::byte> shared_span();
  void wake_writer();

  std::shared_ptr<Doorbell> doorbell_;
  Options options_;
  std::optional<Clock::time_point> closed_at_;  // this connection alone
  RingMemory memory_;
  Writer out_;
  BufferOwner owner_;
  std::vector<Held> held_;
  std::size_t held_bytes_ = 0;

  Reader in_;
  BufferReader reader_;
};

// The connections of two ranks, the first of which always rings (control). The memory has a small
// ring each way for that one, and shares the rest equally among the others. Throws
// CommunicationError if it cannot be mapped.
std::vector<std::unique_ptr<headrace::Connection>> connections_of(Fd socket, const Fd& memory,
                                                                  std::size_t count, bool first);

// Bytes of the memory for the first of them: a page of state and a page each way, more than the
// frames of a control connection that are under way at one time.
inline std::size_t control_bytes() { return 3 * RingMemory::page_bytes(); }

}  // namespace headrace::shm
