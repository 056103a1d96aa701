// One non-blocking connection driven by edge-triggered readiness.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/faults.hpp"
#include "transport/mesh.hpp"
#include "transport/wire.hpp"

namespace headrace {

struct Traffic {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

class Stream {
 public:
  Stream(Link link, Faults& faults, Traffic& traffic);
  virtual ~Stream() = default;

  // Moves what can be moved without blocking; returns whether anything moved.
  virtual bool progress() = 0;
  // Whether some task needs this connection.
  virtual bool busy() const = 0;
  // Forgets all tasks (their buffers are no longer ours to touch).
  virtual void drop() = 0;

  int fd() const { return fd_.get(); }
  // Lets go of the socket without a word (in a forked child, where it is another process's).
  void abandon() { fd_.reset(); }
  int peer() const { return peer_; }
  std::int32_t channel() const { return channel_; }
  // What went over this connection; may be asked from any thread.
  std::uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t sends() const { return sends_.load(std::memory_order_relaxed); }
  std::uint64_t received_bytes() const { return received_bytes_.load(std::memory_order_relaxed); }
  void ready(bool readable, bool writable, bool hangup);
  // When the connection ended, if it has.
  std::optional<Clock::time_point> closed_at() const { return closed_at_; }

 protected:
  static constexpr std::size_t kStagingBytes = 128 << 10;

  // Hands the parts to the kernel; returns how much it took.
  std::size_t send(const iovec* parts, int count, std::size_t total);
  // Reads into the parts; 0 when nothing is there or the connection has ended.
  std::size_t receive(const iovec* parts, int count, std::size_t total);
  // Reads up to `limit` bytes into the empty staging buffer; returns whether anything came.
  bool fill(std::size_t limit);

  bool can_read() const { return readable_ && !closed_at_; }
  bool can_write() const { return writable_ && !closed_at_; }
  // Staged bytes not yet used.
  std::size_t staged() const { return end_ - begin_; }
  const std::byte* front() const { return staging_.get() + begin_; }
  void use(std::size_t bytes) { begin_ += bytes; }
  iovec staging_part(std::size_t limit);
  void add_staged(std::size_t bytes) { end_ += bytes; }
  // Takes a header off the staging buffer if a whole one is there.
  bool take_header(Header& header);
  void set_closed();

 private:
  Fd fd_;
  int peer_;
  std::int32_t channel_;
  Faults& faults_;
  Traffic& traffic_;
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> sends_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
  bool readable_ = true;
  bool writable_ = true;
  bool hangup_ = false;
  std::optional<Clock::time_point> closed_at_;
  std::unique_ptr<std::byte[]> staging_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace headrace
