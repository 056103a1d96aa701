#include "transport/tls/wire.hpp"

#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace headrace::tls {
namespace {

// A record, the overhead of encryption, and a key update before it.
constexpr std::size_t kMostRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH + 512;
constexpr std::size_t kKeptBytes = 8 * kMostRecordBytes;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

BIO_METHOD* Wire::method() {
  struct Free {
    void operator()(BIO_METHOD* one) const { BIO_meth_free(one); }
  };
  static const auto made = [] {
    std::unique_ptr<BIO_METHOD, Free> one(
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "headrace"));
    if (one) {
      BIO_meth_set_read(one.get(), read);
      BIO_meth_set_write(one.get(), write);
      BIO_meth_set_ctrl(one.get(), control);
    }
    return one;
  }();
  return made.get();
}

BIO* Wire::bio() {
  auto* made = method() == nullptr ? nullptr : BIO_new(method());
  if (made == nullptr) return nullptr;
  BIO_set_data(made, this);
  BIO_set_init(made, 1);
  return made;
}

void Wire::ready(bool readable, bool writable, bool hangup) {
  readable_ |= readable;
  writable_ |= writable;
  hangup_ |= hangup;
}

int Wire::read(BIO* bio, char* into, int bytes) {
  auto& self = *static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self.socket_.closed_at()) return 0;
  ssize_t n = -1;
  if (self.readable_) {
    do {
      n = ::recv(self.socket_.fd(), into, static_cast<std::size_t>(bytes), MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && would_block()) self.readable_ = false;
  }
  if (!self.readable_) {
    BIO_set_retry_read(bio);
    return -1;
  }
  if (n <= 0) {
    self.socket_.close();
    return 0;
  }
  // As for plain TCP: a short read drained the socket; after a hang-up only another read can tell.
  if (n < bytes && !self.hangup_) self.readable_ = false;
  return static_cast<int>(n);
}

int Wire::write(BIO* bio, const char* from, int bytes) {
  auto& self = *static_cast<Wire*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (!self.kept_) self.kept_ = std::make_unique_for_overwrite<char[]>(kKeptBytes);
  auto size = static_cast<std::size_t>(bytes);
  if (size > kKeptBytes - self.end_) return -1;
  std::memcpy(self.kept_.get() + self.end_, from, size);
  self.end_ += size;
  return bytes;
}

long Wire::control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP;
}

bool Wire::has_room_for_record() const { return kKeptBytes - end_ >= kMostRecordBytes; }

bool Wire::flush() {
  while (begin_ < end_) {
    if (!writable_ || socket_.closed_at()) return false;
    auto n = ::send(socket_.fd(), kept_.get() + begin_, end_ - begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (would_block()) {
        writable_ = false;
      } else if (errno != EINTR) {
        socket_.close();
      }
      continue;
    }
    begin_ += static_cast<std::size_t>(n);
    if (begin_ < end_) writable_ = false;  // draining raises the next edge
  }
  begin_ = end_ = 0;
  return true;
}

}  // namespace headrace::tls
