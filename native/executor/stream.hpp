// The tasks that want one connection, in order.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "transport/connection.hpp"
#include "transport/wire.hpp"

namespace headrace {

// The executor's lock, as streams see it: they let go of it while they move many bytes, so that
// other threads can see to other streams.
class Leave {
 public:
  // Without a lock there are no other threads, and it is kept. `called` before it is let go of.
  Leave(std::unique_lock<std::mutex>* lock, std::function<void()> called)
      : lock_(lock), called_(std::move(called)) {}

  template <class Action>
  auto during(std::uint64_t bytes, const Action& action) const {
    if (lock_ == nullptr || bytes < kLeastBytes) return action();
    called_();
    lock_->unlock();
    struct Return {
      std::unique_lock<std::mutex>& lock;
      ~Return() { lock.lock(); }
    } back{*lock_};
    return action();
  }

 private:
  // To move less takes no longer than to hand over a lock.
  static constexpr std::uint64_t kLeastBytes = 32 << 10;

  std::unique_lock<std::mutex>* lock_;
  std::function<void()> called_;
};

class Stream {
 public:
  Stream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel)
      : connection_(std::move(connection)), peer_(peer), channel_(channel) {}
  virtual ~Stream() = default;

  // Moves what can be moved without blocking; returns whether anything moved. Throws ProtocolError.
  // The stream must be taken, as its buffers and its connection are in use while it is on leave.
  virtual bool progress(const Leave& leave) = 0;
  // Whether some task needs this connection.
  virtual bool busy() const = 0;
  // Forgets all tasks (their buffers are no longer ours to touch).
  virtual void drop() = 0;

  bool taken() const { return taken_; }
  void take() { taken_ = true; }
  void give_back();
  // Tells the connection of its events, at once or as soon as it is given back.
  void ready(bool readable, bool writable, bool hangup);

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
  bool taken_ = false;
  bool readable_ = false;  // what was told while it was taken
  bool writable_ = false;
  bool hangup_ = false;
};

}  // namespace headrace
