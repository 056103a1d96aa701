#include "transport/shm/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/copy.hpp"

namespace headrace::shm {
namespace {

// A large piece is taken part by part, so that the writer can go on before the reader is done.
constexpr std::size_t kReleaseBytes = 32 << 10;

}  // namespace

Connection::Connection(Fd fd, const Fd& memory, bool first)
    : SocketConnection(std::move(fd)),
      memory_(memory),
      out_(memory_, first ? 0 : 1),
      in_(memory_, first ? 1 : 0) {}

std::size_t Connection::send(const iovec* parts, int count) {
  if (closed_at()) return 0;
  std::size_t sent = 0;
  for (int i = 0; i < count; ++i) {
    auto bytes = std::min(parts[i].iov_len, out_.room(parts[i].iov_len));
    out_.write(static_cast<const std::byte*>(parts[i].iov_base), bytes);
    sent += bytes;
    if (bytes < parts[i].iov_len) break;
  }
  if (sent > 0) {
    count_sent(sent);
    if (out_.wakes_reader()) ring_bell();
  }
  return sent;
}

std::size_t Connection::receive(std::byte* into, std::size_t bytes, const Hints& hints) {
  std::size_t received = 0;
  while (received < bytes) {
    auto came = peek(1, 0);
    if (came.empty()) break;
    auto piece = std::min({came.size(), bytes - received, kReleaseBytes});
    if (hints.past_caches) {
      copy_past_caches(into + received, came.data(), piece);
    } else {
      std::memcpy(into + received, came.data(), piece);
    }
    use(piece);
    received += piece;
  }
  return received;
}

std::span<const std::byte> Connection::peek(std::size_t least, std::size_t) {
  if (in_.readable() < least) in_.look();
  return in_.span();
}

void Connection::use(std::size_t bytes) {
  in_.use(bytes);
  count_received(bytes);
  if (!in_.freed_enough()) return;
  if (in_.wakes_writer()) ring_bell();
}

void Connection::ring_bell() {
  // A full socket has rung enough, and a closed one is noticed by its event.
  char bell = 0;
  (void)!::send(fd(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::ready(bool readable, bool, bool hangup) {
  if (!readable && !hangup) return;
  for (;;) {
    char bells[64];
    auto n = ::recv(fd(), bells, sizeof bells, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) close();
    return;
  }
}

void Connection::announce_sleep(bool asleep) {
  in_.announce_sleep(asleep);
  out_.announce_sleep(asleep);
}

bool Connection::news() {
  bool came = in_.news();
  return out_.news() || came;
}

}  // namespace headrace::shm
