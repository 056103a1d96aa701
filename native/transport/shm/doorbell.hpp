// The socket of two ranks of one host, which all their connections share: it wakes the peer, passes
// descriptors of memory, and its end tells of the peer's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/connection.hpp"
#include "transport/fd.hpp"

namespace headrace::shm {

// Thread-safe: connections of one pair may be driven by different threads.
class Doorbell {
 public:
  // A region's memory, and the number under which its connection has it.
  struct Passed {
    std::size_t number;
    Fd memory;
  };

  explicit Doorbell(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  std::optional<Clock::time_point> closed_at() const;
  // Wakes the peer.
  void ring() const;
  // Passes the memory of a region to connection `connection` of the peer; returns whether it could.
  bool pass(std::size_t connection, std::size_t number, const Fd& memory) const;
  // Reads what the peer has sent.
  void read();
  // Takes the regions passed to a connection so far. Throws ProtocolError if this process had no
  // descriptor left for one, of whichever connection.
  std::vector<Passed> take(std::size_t connection);
  // For a forked child: closes its copy of the socket.
  void abandon() { fd_.reset(); }

 private:
  void close();

  Fd fd_;
  std::atomic<Clock::rep> closed_at_{0};     // 0: it is open
  std::mutex mutex_;                         // of those below
  std::vector<std::vector<Passed>> passed_;  // by connection
  bool descriptor_lost_ = false;
};

}  // namespace headrace::shm
