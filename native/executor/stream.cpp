#include "executor/stream.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

// One thread at a time writes the counter, so no locked instruction is needed.
void add_to(std::atomic<std::uint64_t>& counter, std::uint64_t more) {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

Stream::Stream(Link link, Faults& faults, Traffic& traffic)
    : fd_(std::move(link.fd)),
      peer_(link.peer),
      channel_(link.channel),
      faults_(faults),
      traffic_(traffic) {}

void Stream::ready(bool readable, bool writable, bool hangup) {
  readable_ |= readable;
  writable_ |= writable;
  hangup_ |= hangup;
}

void Stream::set_closed() {
  if (!closed_at_) closed_at_ = Clock::now();
}

std::size_t Stream::send(const iovec* parts, int count, std::size_t total) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  auto n = faults_.send(fd_.get(), message);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      writable_ = false;
    } else if (errno != EINTR) {
      set_closed();
    }
    return 0;
  }
  auto sent = static_cast<std::size_t>(n);
  // A short write filled the socket's buffer: its draining raises the next edge.
  if (sent < total) writable_ = false;
  traffic_.sent_bytes += sent;
  add_to(sent_bytes_, sent);
  add_to(sends_, 1);
  return sent;
}

std::size_t Stream::receive(const iovec* parts, int count, std::size_t total) {
  auto n = faults_.receive(fd_.get(), parts, count);
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      readable_ = false;
    } else if (errno != EINTR) {
      set_closed();
    }
    return 0;
  }
  if (n == 0) {
    set_closed();
    return 0;
  }
  auto received = static_cast<std::size_t>(n);
  // A short read drained the socket: what comes later raises an edge. The end of the stream may
  // have come with this very edge, so after a hang-up only reading on can tell.
  if (received < total && !hangup_) readable_ = false;
  traffic_.received_bytes += received;
  add_to(received_bytes_, received);
  return received;
}

iovec Stream::staging_part(std::size_t limit) {
  if (!staging_) staging_ = std::make_unique_for_overwrite<std::byte[]>(kStagingBytes);
  if (begin_ > 0) {
    std::memmove(staging_.get(), staging_.get() + begin_, staged());
    end_ -= begin_;
    begin_ = 0;
  }
  return {staging_.get() + end_, std::min(limit, kStagingBytes - end_)};
}

bool Stream::fill(std::size_t limit) {
  auto part = staging_part(limit);
  if (part.iov_len == 0) return false;
  auto received = receive(&part, 1, part.iov_len);
  end_ += received;
  return received > 0;
}

bool Stream::take_header(Header& header) {
  if (staged() < sizeof header) return false;
  std::memcpy(&header, front(), sizeof header);
  use(sizeof header);
  return true;
}

}  // namespace headrace
