// A connection over a stream socket: TCP between hosts.
#pragma once

#include "transport/connection.hpp"
#include "transport/staging.hpp"

namespace headrace::tcp {

class Connection final : public SocketConnection {
 public:
  explicit Connection(Fd fd) : SocketConnection(std::move(fd)) {}

  std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override {
    staging_.use(bytes);
    return true;
  }
  bool holds_bytes() const override { return staging_.size() > 0; }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool) override {}
  bool changed() override { return false; }
  bool shares_memory() const override { return false; }

 private:
  std::size_t fetch(const iovec* parts, int count);

  bool readable_ = true;
  bool writable_ = true;
  bool hangup_ = false;
  Staging staging_;
};

// Limits the kernel's sending rate on a socket (TCP pacing); 0 lifts the limit.
void set_pacing(int fd, std::uint64_t bytes_per_s);

}  // namespace headrace::tcp
