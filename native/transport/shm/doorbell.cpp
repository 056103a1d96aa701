#include "transport/shm/doorbell.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace headrace::shm {
namespace {

// What is sent each time, so that no read ends inside one: the kernel takes it whole or not at all.
// All zeros to wake the peer; else it comes with a descriptor.
struct Note {
  std::uint16_t connection = 0;
  std::uint8_t number = 0;
  std::uint8_t passes = 0;
};
static_assert(sizeof(Note) == 4);

constexpr std::size_t kNotesRead = 64;
constexpr std::size_t kMostConnections = 1 << 16;

}  // namespace

std::optional<Clock::time_point> Doorbell::closed_at() const {
  auto since = closed_at_.load(std::memory_order_acquire);
  if (since == 0) return std::nullopt;
  return Clock::time_point(Clock::duration(since));
}

void Doorbell::ring() const {
  // A full socket wakes the peer anyway, and a closed one raises its event.
  Note note;
  (void)!::send(fd(), &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool Doorbell::pass(std::size_t connection, std::size_t number, const Fd& memory) const {
  if (connection >= kMostConnections) return false;
  Note note{static_cast<std::uint16_t>(connection), static_cast<std::uint8_t>(number), 1};
  iovec part{&note, sizeof note};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  auto* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  int passed = memory.get();
  std::memcpy(CMSG_DATA(rights), &passed, sizeof passed);
  return ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof note;
}

void Doorbell::read() {
  std::lock_guard lock(mutex_);
  for (;;) {
    Note notes[kNotesRead];
    iovec part{notes, sizeof notes};
    alignas(cmsghdr) char space[CMSG_SPACE(16 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    auto bytes = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes > 0 && message.msg_flags & MSG_CTRUNC) descriptor_lost_ = true;
    // A read ends with the note that a descriptor was passed with.
    auto count = bytes > 0 ? static_cast<std::size_t>(bytes) / sizeof(Note) : 0;
    for (auto* rights = bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr; rights != nullptr;
         rights = CMSG_NXTHDR(&message, rights)) {
      if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
      for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= rights->cmsg_len; at += sizeof(int)) {
        int descriptor;
        std::memcpy(&descriptor, CMSG_DATA(rights) + at, sizeof descriptor);
        Fd memory(descriptor);
        if (count == 0 || notes[count - 1].passes == 0) continue;
        std::size_t connection = notes[count - 1].connection;
        if (connection >= passed_.size()) passed_.resize(connection + 1);
        passed_[connection].push_back({notes[count - 1].number, std::move(memory)});
      }
    }
    bool whole = bytes > 0 && static_cast<std::size_t>(bytes) % sizeof(Note) == 0;
    if (whole || (bytes < 0 && errno == EINTR)) continue;
    if (bytes >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) close();
    return;
  }
}

std::vector<Doorbell::Passed> Doorbell::take(std::size_t connection) {
  std::lock_guard lock(mutex_);
  if (descriptor_lost_) {
    throw ProtocolError(
        "a rank has no file descriptor left for memory that another one shares with it: raise the "
        "limit of open files (ulimit -n)");
  }
  if (connection >= passed_.size()) return {};
  return std::exchange(passed_[connection], {});
}

void Doorbell::close() {
  Clock::rep open = 0;
  closed_at_.compare_exchange_strong(open, Clock::now().time_since_epoch().count());
}

}  // namespace headrace::shm
