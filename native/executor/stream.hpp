// The tasks that want one connection, in order.
#pragma once

#include <memory>

#include "transport/connection.hpp"
#include "transport/wire.hpp"

namespace headrace {

class Stream {
 public:
  Stream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel)
      : connection_(std::move(connection)), peer_(peer), channel_(channel) {}
  virtual ~Stream() = default;

  // Moves what can be moved without blocking; returns whether anything moved. Throws ProtocolError.
  virtual bool progress() = 0;
  // Whether some task needs this connection.
  virtual bool busy() const = 0;
  // Forgets all tasks (their buffers are no longer ours to touch).
  virtual void drop() = 0;

  Connection& connection() { return *connection_; }
  const Connection& connection() const { return *connection_; }
  int peer() const { return peer_; }
  std::int32_t channel() const { return channel_; }

 protected:
  // More than this is not fetched before it has a place.
  static constexpr std::size_t kFetchBytes = 128 << 10;

  // Takes a header if a whole one is there; `most` bytes may be fetched for it.
  bool take_header(Header& header, std::size_t most = kFetchBytes);

 private:
  std::unique_ptr<Connection> connection_;
  int peer_;
  std::int32_t channel_;
};

}  // namespace headrace
