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
// Less is copied through the ring: it is in the caches.
constexpr std::size_t kLeastLoan = 32 << 10;

}  // namespace

Connection::Connection(Fd fd, const Fd& memory, bool first)
    : SocketConnection(std::move(fd)),
      memory_(memory),
      out_(memory_, first ? 0 : 1),
      lender_(memory_.loans(first ? 0 : 1)),
      in_(memory_, first ? 1 : 0),
      borrower_(memory_.loans(first ? 1 : 0)) {}

void Connection::close() {
  lender_.revoke();
  SocketConnection::close();
}

// ---- sending

std::size_t Connection::send(const iovec* parts, int count, std::uint32_t lendable) {
  if (closed_at()) return 0;
  lender_.drop_ended();
  auto known = held_bytes_;  // offered again
  std::size_t sent = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    auto skipped = std::min(known, parts[i].iov_len);
    known -= skipped;
    auto* from = static_cast<const std::byte*>(parts[i].iov_base) + skipped;
    auto bytes = parts[i].iov_len - skipped;
    if (bytes == 0) continue;
    bool lendable_whole = lendable >> i & 1 && skipped == 0 && bytes >= kLeastLoan;
    auto lent = lendable_whole ? lend(from, bytes) : std::nullopt;
    auto taken = lent ? *lent : write(from, bytes);
    any |= taken > 0;
    if (held_.empty()) sent += taken;
    if (taken < bytes) break;
  }
  sent += released();
  if (sent > 0) count_sent(sent);
  if (any && out_.wakes_reader()) ring_bell();
  return sent;
}

void Connection::hold(std::size_t bytes, bool lent) {
  held_.push_back({bytes, lent});
  held_bytes_ += bytes;
}

std::size_t Connection::write(const std::byte* from, std::size_t bytes) {
  auto written = std::min(bytes, out_.room(bytes));
  out_.write(from, written);
  if (!held_.empty() && written > 0) hold(written, false);
  return written;
}

std::optional<std::size_t> Connection::lend(const std::byte* from, std::size_t bytes) {
  auto region = region_of(from, bytes);
  if (!region) return std::nullopt;
  if (lender_.full()) return 0;
  if (!lender_.lend(out_.tail(), region, from, bytes, fd())) return std::nullopt;
  hold(bytes, true);
  return bytes;
}

// What may be overwritten now, of what was held.
std::size_t Connection::released() {
  if (held_.empty()) return 0;
  auto back = lender_.take_back();
  std::size_t bytes = 0;
  auto next = held_.begin();
  for (; next != held_.end() && (!next->lent || back > 0); ++next) {
    if (next->lent) --back;
    bytes += next->bytes;
  }
  held_.erase(held_.begin(), next);
  held_bytes_ -= bytes;
  return bytes;
}

// ---- receiving

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
    if (!use(piece)) break;
    received += piece;
  }
  return received;
}

std::span<const std::byte> Connection::peek(std::size_t least, std::size_t) {
  borrower_.drop_ended();
  if (in_ring() < least) in_.look();
  auto came = in_ring();
  return borrower_.is_next(in_.head()) ? loan() : in_.span().first(came);
}

std::span<const std::byte> Connection::loan() {
  auto bytes = borrower_.span();
  if (bytes.empty()) {
    read_socket();  // its region was handed over before
    for (auto& [number, memory] : std::exchange(handed_over_, {})) {
      borrower_.add_region(number, std::move(memory));
    }
    bytes = borrower_.span();
  }
  return bytes;
}

bool Connection::use(std::size_t bytes) {
  if (!borrower_.is_next(in_.head())) {
    in_.use(bytes);
    if (in_.freed_enough()) wake_writer();
  } else if (!borrower_.use(bytes)) {
    close();
    return false;
  } else if (!borrower_.is_next(in_.head())) {
    wake_writer();
  }
  count_received(bytes);
  return true;
}

// ---- sleeping

void Connection::wake_writer() {
  if (in_.wakes_writer()) ring_bell();
}

void Connection::ring_bell() {
  // A full socket has rung enough, and a closed one is noticed by its event.
  char bell = 0;
  (void)!::send(fd(), &bell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::ready(bool readable, bool, bool hangup) {
  if (readable || hangup) read_socket();
}

// Takes bells off the socket, and what peers hand over with them.
void Connection::read_socket() {
  for (;;) {
    char bells[64];
    iovec part{bells, sizeof bells};
    alignas(cmsghdr) char space[CMSG_SPACE(16 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    auto n = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    for (auto* rights = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr; rights != nullptr;
         rights = CMSG_NXTHDR(&message, rights)) {
      if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= rights->cmsg_len; at += sizeof(int)) {
        int one;
        std::memcpy(&one, CMSG_DATA(rights) + at, sizeof one);
        // What goes along with a descriptor is the last byte of a read: no more follows in one.
        handed_over_.push_back({static_cast<unsigned char>(bells[n - 1]), Fd(one)});
      }
    }
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) close();
    return;
  }
}

void Connection::announce_sleep(bool asleep) {
  in_.announce_sleep(asleep);
  out_.announce_sleep(asleep && (out_.held_back() || lender_.waits()));
}

bool Connection::news() {
  bool came = in_.news() || borrower_.news();
  return out_.news() || lender_.news() || came;
}

}  // namespace headrace::shm
