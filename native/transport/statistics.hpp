// Kernel statistics of a connection, and our own counters.
#pragma once

#include <cstdint>

namespace headrace {

// From TCP_INFO; fields that the kernel does not have are 0.
struct TcpStatistics {
  std::uint64_t acked_bytes = 0;  // received by the peer's kernel
  // Time with data waiting to be sent or acknowledged, in whole kernel ticks (1 to 10 ms): accurate
  // on average over many messages, not for a single one.
  std::uint64_t busy_us = 0;
  std::uint64_t peer_limited_us = 0;    // of busy_us: the peer's receive window was full
  std::uint64_t buffer_limited_us = 0;  // of busy_us: our send buffer was too small
  std::uint64_t delivery_rate = 0;      // bytes/s, the kernel's latest estimate
  std::uint32_t rtt_us = 0;             // smoothed
  std::uint32_t min_rtt_us = 0;         // the minimum of the last minutes
  std::uint32_t retransmits = 0;        // segments, since the connection was established
};

TcpStatistics tcp_statistics(int fd);

struct ConnectionStatistics {
  int peer = -1;
  std::int32_t channel = 0;          // see wire.hpp
  std::uint64_t sent_bytes = 0;      // passed to the kernel
  std::uint64_t sends = 0;           // system calls for them
  std::uint64_t received_bytes = 0;  // read from the kernel
  TcpStatistics tcp;
};

}  // namespace headrace
