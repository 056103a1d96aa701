// A connection's tasks, in order, and ownership of it by one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "transport/connection.hpp"
#include "transport/wire.hpp"

namespace headrace {

// Releases the executor's lock around transfers of many bytes, so that other threads can progress
// other streams.
class Unlock {
 public:
  // `lock` is null if there are no other threads: it is kept then. `before_unlock` is called before
  // each release.
  Unlock(std::unique_lock<std::mutex>* lock, std::function<void()> before_unlock)
      : lock_(lock), before_unlock_(std::move(before_unlock)) {}

  template <class Action>
  auto during(std::uint64_t bytes, const Action& action) const {
    if (lock_ == nullptr || bytes < kLeastBytes) return action();
    before_unlock_();
    lock_->unlock();
    struct Return {
      std::unique_lock<std::mutex>& lock;
      ~Return() { lock.lock(); }
    } back{*lock_};
    return action();
  }

 private:
  // Smaller transfers take no longer than handing over a lock.
  static constexpr std::uint64_t kLeastBytes = 32 << 10;

  std::unique_lock<std::mutex>* lock_;
  std::function<void()> before_unlock_;
};

class Stream {
 public:
  Stream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel)
      : connection_(std::move(connection)), peer_(peer), channel_(channel) {}
  virtual ~Stream() = default;

  // Moves what it can without blocking; returns whether anything moved. Throws ProtocolError. The
  // stream must be owned, as its buffers and connection are in use while the lock is released.
  virtual bool progress(const Unlock& unlock) = 0;
  // Whether some task needs this connection.
  virtual bool busy() const = 0;
  // Drops all tasks: their buffers must not be touched any more.
  virtual void drop() = 0;

  bool owned() const { return owned_; }
  void acquire() { owned_ = true; }
  void release();
  // Reports events to the connection: at once, or when the stream is released.
  void ready(bool readable, bool writable, bool hangup);

  Connection& connection() { return *connection_; }
  const Connection& connection() const { return *connection_; }
  int peer() const { return peer_; }
  std::int32_t channel() const { return channel_; }

 protected:
  // Limit of bytes fetched before their destination is known.
  static constexpr std::size_t kFetchBytes = 128 << 10;

  // Reads a header if a whole one has come; may fetch `most` bytes for it.
  bool take_header(Header& header, std::size_t most = kFetchBytes);

 private:
  std::unique_ptr<Connection> connection_;
  int peer_;
  std::int32_t channel_;
  bool owned_ = false;
  bool readable_ = false;  // events that came while it was owned
  bool writable_ = false;
  bool hangup_ = false;
};

}  // namespace headrace
