// Faults on purpose, for tests: a connection that breaks at the n-th call, moves few bytes at a
// time, or stops a thread inside a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "transport/connection.hpp"

namespace headrace::faulty {

// Shared by the connections of one executor.
struct Faults {
  std::int64_t calls_left = 0;  // the call that brings this to zero fails; 0 never does
  std::size_t most_bytes = 0;   // no call moves more; 0 sets no limit
  // Called inside every receive, with the bytes that there was room for and those that it moved:
  // where the executor has released its lock, a test decides what other threads do meanwhile.
  std::function<void(std::size_t room, std::size_t moved)> received{};

  bool any() const { return calls_left > 0 || most_bytes > 0 || received != nullptr; }
};

class Connection final : public headrace::Connection {
 public:
  Connection(std::unique_ptr<headrace::Connection> inner, Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}

  bool open() override { return inner_->open(); }
  std::size_t send(const iovec* parts, int count, std::uint32_t lendable) override {
    if (strikes()) return 0;
    if (faults_.most_bytes == 0) return inner_->send(parts, count, lendable);
    const auto* first =
        std::find_if(parts, parts + count - 1, [](auto& p) { return p.iov_len > 0; });
    iovec part = *first;
    part.iov_len = limited(part.iov_len);
    return inner_->send(&part, 1, lendable >> (first - parts) & 1);
  }
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override {
    if (strikes()) return 0;
    auto moved = inner_->receive(into, limited(bytes), faults_.most_bytes > 0 ? Hints{} : hints);
    if (faults_.received) faults_.received(bytes, moved);
    return moved;
  }
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override {
    if (strikes()) return {};
    auto came = inner_->peek(least, most);
    return came.first(std::max(std::min(least, came.size()), limited(came.size())));
  }
  bool use(std::size_t bytes) override { return inner_->use(bytes); }
  bool holds_bytes() const override { return inner_->holds_bytes(); }

  int fd() const override { return inner_->fd(); }
  void ready(bool readable, bool writable, bool hangup) override {
    inner_->ready(readable, writable, hangup);
  }
  void announce_sleep(bool asleep) override { inner_->announce_sleep(asleep); }
  bool news() override { return inner_->news(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  std::optional<Clock::time_point> closed_at() const override { return inner_->closed_at(); }
  void close() override { inner_->close(); }
  void abandon() override { inner_->abandon(); }
  const Traffic& traffic() const override { return inner_->traffic(); }

 private:
  std::size_t limited(std::size_t bytes) const {
    return faults_.most_bytes == 0 ? bytes : std::min(bytes, faults_.most_bytes);
  }
  // A broken connection is not called any more.
  bool strikes() {
    std::atomic_ref left(faults_.calls_left);  // of all connections, whose threads differ
    if (left > 0 && --left == 0) inner_->close();
    return inner_->closed_at().has_value();
  }

  std::unique_ptr<headrace::Connection> inner_;
  Faults& faults_;
};

}  // namespace headrace::faulty
