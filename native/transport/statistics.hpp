// What the kernel knows of a connection, beside what we counted ourselves.
#pragma once

#include <cstdint>

namespace headrace {

// From TCP_INFO; what the kernel does not tell is 0.
struct TcpStatistics {
  std::uint64_t acked_bytes = 0;  // the peer's kernel has them
  // Time with data waiting to be sent or acknowledged, in whole ticks of the kernel (1 to 10 ms):
  // right on average over many messages, not for a single one.
  std::uint64_t busy_us = 0;
  std::uint64_t peer_limited_us = 0;    // of those: the peer's receive window was full
  std::uint64_t buffer_limited_us = 0;  // of those: our send buffer was too small
  std::uint64_t delivery_rate = 0;      // bytes/s, the kernel's newest estimate
  std::uint32_t rtt_us = 0;             // smoothed
  std::uint32_t min_rtt_us = 0;         // the lowest lately (minutes)
  std::uint32_t retransmits = 0;        // segments, since the connection was made
};

TcpStatistics tcp_statistics(int fd);

struct ConnectionStatistics {
  int peer = -1;
  std::int32_t channel = 0;          // see wire.hpp
  std::uint64_t sent_bytes = 0;      // handed to the kernel
  std::uint64_t sends = 0;           // system calls that it took
  std::uint64_t received_bytes = 0;  // taken from the kernel
  TcpStatistics tcp;
};

}  // namespace headrace
