// A connection between ranks of one host: a ring of shared memory each way, and a socket that
// wakes whoever sleeps and tells of the peer's end.
#pragma once

#include "transport/connection.hpp"
#include "transport/shm/ring.hpp"

namespace headrace::shm {

class Connection final : public SocketConnection {
 public:
  // `first` is true at exactly one of the two ends. Throws CommunicationError if the memory cannot
  // be mapped.
  Connection(Fd fd, const Fd& memory, bool first);

  std::size_t send(const iovec* parts, int count) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  void use(std::size_t bytes) override;
  bool holds_bytes() const override { return in_.readable() > 0; }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool asleep) override;
  bool news() override;
  bool shares_memory() const override { return true; }

 private:
  void ring_bell();

  RingMemory memory_;
  Writer out_;
  Reader in_;
};

}  // namespace headrace::shm
