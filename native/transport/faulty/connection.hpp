// Fault injection for tests: a connection that breaks at the n-th call that moves bytes, moves few
// bytes at a time, or stops a thread inside a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "transport/connection.hpp"

namespace headrace::faulty {

// Shared by the connections of one executor.
struct Faults {
  // Countdown over calls that move bytes: the call that reaches 0 breaks its connection and loses
  // its bytes; 0 disables it. Calls that find nothing to move do not count: their number depends on
  // timing.
  std::int64_t calls_left = 0;
  std::function<void()> broken{};  // called at the break
  std::size_t most_bytes = 0;      // limit of every call; 0: none
  // Called inside every receive with the bytes of room and the bytes moved: where the executor has
  // released its lock, a test injects the actions of other threads.
  std::function<void(std::size_t room, std::size_t moved)> received{};

  bool any() const { return calls_left > 0 || most_bytes > 0 || received != nullptr; }
};

class Connection final : public headrace::Connection {
 public:
  // `breaks`: whether its calls count towards `calls_left`.
  Connection(std::unique_ptr<headrace::Connection> inner, Faults& faults, bool breaks)
      : inner_(std::move(inner)), faults_(faults), breaks_(breaks) {}

  bool open() override { return inner_->open(); }
  std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) override {
    if (broken_) return 0;
    if (faults_.most_bytes == 0) return survived(inner_->send(parts, count, zero_copy));
    const auto* first =
        std::find_if(parts, parts + count - 1, [](auto& p) { return p.iov_len > 0; });
    iovec part = *first;
    part.iov_len = limited(part.iov_len);
    return survived(inner_->send(&part, 1, zero_copy >> (first - parts) & 1));
  }
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override {
    if (broken_) return 0;
    auto moved = inner_->receive(into, limited(bytes), faults_.most_bytes > 0 ? Hints{} : hints);
    if (faults_.received) faults_.received(bytes, moved);
    return survived(moved);
  }
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override {
    if (broken_) return {};
    auto came = inner_->peek(least, most);
    if (survived(came.size()) == 0) return {};
    return came.first(std::max(std::min(least, came.size()), limited(came.size())));
  }
  bool use(std::size_t bytes) override { return inner_->use(bytes); }
  bool holds_bytes() const override { return inner_->holds_bytes(); }

  int fd() const override { return inner_->fd(); }
  void ready(bool readable, bool writable, bool hangup) override {
    inner_->ready(readable, writable, hangup);
  }
  void announce_sleep(bool asleep) override { inner_->announce_sleep(asleep); }
  bool changed() override { return inner_->changed(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  std::optional<Clock::time_point> closed_at() const override { return inner_->closed_at(); }
  void close() override { inner_->close(); }
  void abandon() override { inner_->abandon(); }
  const Traffic& traffic() const override { return inner_->traffic(); }

 private:
  std::size_t limited(std::size_t bytes) const {
    return faults_.most_bytes == 0 ? bytes : std::min(bytes, faults_.most_bytes);
  }
  // Bytes left of those that a call moved: all, or none if this call breaks.
  std::size_t survived(std::size_t moved) {
    std::atomic_ref left(faults_.calls_left);  // shared by connections on several threads
    if (moved == 0 || !breaks_ || left <= 0 || --left != 0) return moved;
    broken_ = true;
    inner_->close();
    if (faults_.broken) faults_.broken();
    return 0;
  }

  std::unique_ptr<headrace::Connection> inner_;
  Faults& faults_;
  bool breaks_;
  bool broken_ = false;
};

}  // namespace headrace::faulty
