// Faults on purpose: the n-th send or receive fails as if the peer had reset the connection.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace headrace {

class Faults {
 public:
  // `fail_at` counts I/O calls from 1; 0 never fails.
  explicit Faults(std::int64_t fail_at = 0) : left_(fail_at) {}

  ssize_t send(int fd, const msghdr& message) {
    return strikes() ? reset() : ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ssize_t receive(int fd, const iovec* parts, int count) {
    return strikes() ? reset() : ::readv(fd, parts, count);
  }

 private:
  bool strikes() { return left_ > 0 && --left_ == 0; }
  static ssize_t reset() {
    errno = ECONNRESET;
    return -1;
  }
  std::int64_t left_;
};

}  // namespace headrace
