// A connection over a stream socket, encrypted and authenticated from the first byte on: TLS 1.3.
#pragma once

#include <memory>
#include <string>

#include "transport/connection.hpp"

namespace headrace::tls {

// Size of a connection's key, which only its two ends know.
constexpr std::size_t kKeyBytes = 32;

// Whether this build has TLS.
bool available();

struct Options {
  std::string key;
  bool client = false;                                     // one end is, the other is not
  int peer = -1;                                           // for messages
  std::uint64_t records_per_key = std::uint64_t{1} << 22;  // sent, before a key update
};

// Throws CommunicationError if TLS is not available.
std::unique_ptr<Connection> make(Fd fd, Options options);

}  // namespace headrace::tls
