#include "transport/statistics.hpp"

// The kernel's header: the C library's has only the oldest fields of tcp_info.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace headrace {
namespace {

// The kernel counts the connection's opening as an acknowledged byte, and represents "no round trip
// yet" by the largest number.
constexpr std::uint64_t kOpening = 1;
constexpr std::uint32_t kNever = ~0U;

}  // namespace

TcpStatistics tcp_statistics(int fd) {
  tcp_info info{};  // an older kernel fills the first fields only
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  TcpStatistics found;
  found.acked_bytes = std::max<std::uint64_t>(info.tcpi_bytes_acked, kOpening) - kOpening;
  found.busy_us = info.tcpi_busy_time;
  found.peer_limited_us = info.tcpi_rwnd_limited;
  found.buffer_limited_us = info.tcpi_sndbuf_limited;
  found.delivery_rate = info.tcpi_delivery_rate;
  found.rtt_us = info.tcpi_rtt;
  found.min_rtt_us = info.tcpi_min_rtt == kNever ? 0 : info.tcpi_min_rtt;
  found.retransmits = info.tcpi_total_retrans;
  return found;
}

}  // namespace headrace
