// A connection over a stream socket: TCP between hosts.
#pragma once

#include <memory>

#include "transport/connection.hpp"

namespace headrace::tcp {

class Connection final : public SocketConnection {
 public:
  explicit Connection(Fd fd) : SocketConnection(std::move(fd)) {}

  std::size_t send(const iovec* parts, int count, std::uint32_t lendable) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override {
    begin_ += bytes;
    return true;
  }
  bool holds_bytes() const override { return begin_ != end_; }

  void ready(bool readable, bool writable, bool hangup) override;
  void announce_sleep(bool) override {}
  bool news() override { return false; }
  bool shares_memory() const override { return false; }

 private:
  // What was fetched and not used lies in [begin_, end_) of the staging buffer.
  static constexpr std::size_t kStagingBytes = 128 << 10;

  iovec staging_part(std::size_t limit);
  std::size_t fetch(const iovec* parts, int count);

  bool readable_ = true;
  bool writable_ = true;
  bool hangup_ = false;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// Limits the rate at which the kernel sends on a socket (TCP's own pacing); 0 lifts the limit.
void set_pacing(int fd, std::uint64_t bytes_per_s);

}  // namespace headrace::tcp
