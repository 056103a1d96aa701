// A connection between ranks of one host: a ring of shared memory each way, and a socket that
// wakes whoever sleeps and tells of the peer's end. Large parts that lie in memory which the peer
// may read (see region.hpp) are lent.
#pragma once

#include <vector>

#include "transport/connection.hpp"
#include "transport/shm/loan.hpp"
#include "transport/shm/ring.hpp"

namespace headrace::shm {

class Connection final : public SocketConnection {
 public:
  // `first` is true at exactly one of the two ends. Throws CommunicationError if the memory cannot
  // be mapped.
  Connection(Fd fd, const Fd& memory, bool first);
  ~Connection() override { lender_.revoke(); }

  std::size_t send(const iovec* parts, int count, std::uint32_t lendable) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override;
  bool holds_bytes() const override { return in_.readable() > 0; }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool asleep) override;
  bool news() override;
  bool shares_memory() const override { return true; }
  void close() override;

 private:
  // Bytes that were taken from the caller and may not be overwritten yet, or come after such.
  struct Held {
    std::size_t bytes;
    bool lent;
  };

  std::size_t write(const std::byte* from, std::size_t bytes);
  // Returns how much of it was lent: all or nothing; no value if it is to be written instead.
  std::optional<std::size_t> lend(const std::byte* from, std::size_t bytes);
  void hold(std::size_t bytes, bool lent);
  std::size_t released();

  std::size_t in_ring() { return borrower_.until_loan(in_.head(), in_.tail()); }
  std::span<const std::byte> loan();
  void leave(std::size_t bytes);
  void read_socket();
  void wake_writer();
  void ring_bell();

  RingMemory memory_;
  Writer out_;
  Lender lender_;
  std::vector<Held> held_;
  std::size_t held_bytes_ = 0;

  Reader in_;
  Borrower borrower_;
  struct HandedOver {
    std::size_t number;
    Fd memory;
  };
  std::vector<HandedOver> handed_over_;  // by the peer, not yet looked at
};

}  // namespace headrace::shm
