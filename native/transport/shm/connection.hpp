// A connection between ranks of one host: a shared memory ring in each direction, and a socket as
// doorbell and to detect the peer's end. Large parts in memory that the peer can map (see
// region.hpp) are not copied: the peer reads them in place.
#pragma once

#include <vector>

#include "transport/connection.hpp"
#include "transport/shm/ring.hpp"
#include "transport/shm/shared_buffer.hpp"

namespace headrace::shm {

class Connection final : public SocketConnection {
 public:
  // `first` is true at exactly one of the two ends. Throws CommunicationError if the memory cannot
  // be mapped.
  Connection(Fd fd, const Fd& memory, bool first);
  ~Connection() override { owner_.revoke(); }

  std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override;
  bool holds_bytes() const override { return in_.readable() > 0; }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool asleep) override;
  bool changed() override;
  bool shares_memory() const override { return true; }
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
  void read_socket();
  void wake_writer();
  void ring_doorbell();

  RingMemory memory_;
  Writer out_;
  BufferOwner owner_;
  std::vector<Held> held_;
  std::size_t held_bytes_ = 0;

  Reader in_;
  BufferReader reader_;
  struct PassedRegion {
    std::size_t number;
    Fd memory;
  };
  std::vector<PassedRegion> passed_regions_;  // received with their descriptors, not yet mapped
};

}  // namespace headrace::shm
