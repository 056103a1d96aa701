// Replaces connection.cpp where OpenSSL was not found.
#include "transport/tls/connection.hpp"

namespace headrace::tls {

bool available() { return false; }

std::unique_ptr<Connection> make(Fd, Options) {
  throw CommunicationError(
      "headrace was built without TLS: install OpenSSL 3 (Debian: libssl-dev) "
      "and build it again");
}

}  // namespace headrace::tls
