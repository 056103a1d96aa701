#include "transport/tcp/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace headrace::tcp {
namespace {

std::size_t size_of(const iovec* parts, int count) {
  std::size_t size = 0;
  for (int i = 0; i < count; ++i) size += parts[i].iov_len;
  return size;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

void Connection::ready(bool readable, bool writable, bool hangup) {
  readable_ |= readable;
  writable_ |= writable;
  hangup_ |= hangup;
}

std::size_t Connection::send(const iovec* parts, int count, std::uint32_t) {
  if (!writable_ || closed_at()) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  auto n = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    if (would_block()) {
      writable_ = false;
    } else if (errno != EINTR) {
      close();
    }
    return 0;
  }
  auto sent = static_cast<std::size_t>(n);
  // A short write filled the socket's buffer; draining it raises the next edge.
  if (sent < size_of(parts, count)) writable_ = false;
  count_sent(sent);
  return sent;
}

std::size_t Connection::fetch(const iovec* parts, int count) {
  if (!readable_ || closed_at()) return 0;
  auto n = ::readv(fd(), parts, count);
  if (n < 0) {
    if (would_block()) {
      readable_ = false;
    } else if (errno != EINTR) {
      close();
    }
    return 0;
  }
  if (n == 0) {
    close();
    return 0;
  }
  auto received = static_cast<std::size_t>(n);
  // A short read drained the socket; later data raises an edge. The end of the stream may have come
  // with this edge, so after a hang-up only another read can tell.
  if (received < size_of(parts, count) && !hangup_) readable_ = false;
  count_received(received);
  return received;
}

std::span<const std::byte> Connection::peek(std::size_t least, std::size_t most) {
  if (staging_.size() < least && readable_) {
    auto part = staging_.room(most - staging_.size());
    staging_.fill(fetch(&part, 1));
  }
  return staging_.bytes();
}

std::size_t Connection::receive(std::byte* into, std::size_t bytes, const Hints& hints) {
  if (auto staged = staging_.take(into, bytes); staged > 0) return staged;
  if (!readable_) return 0;
  iovec parts[2] = {{into, bytes}, hints.ahead > 0 ? staging_.room(hints.ahead) : iovec{}};
  auto received = fetch(parts, hints.ahead > 0 ? 2 : 1);
  auto placed = std::min(bytes, received);
  staging_.fill(received - placed);
  return placed;
}

void set_pacing(int fd, std::uint64_t bytes_per_s) {
  auto rate = bytes_per_s == 0 ? ~std::uint64_t{0} : bytes_per_s;
  (void)::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

}  // namespace headrace::tcp
