// For tests: a man in the middle of a connection.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <tuple>

#include "executor/testing.hpp"

namespace headrace::tls {

// Forwards bytes between two ends; `hook` sees them first and may change them.
class Proxy {
 public:
  using Hook = std::function<void(bool from_first, std::uint64_t offset, std::span<char> bytes)>;

  Proxy(Fd first, Fd second, Hook hook)
      : ends_{std::move(first), std::move(second)},
        hook_(std::move(hook)),
        thread_([this] { run(); }) {}
  ~Proxy() { thread_.join(); }  // once an end is closed

 private:
  void run() {
    std::uint64_t offsets[2] = {0, 0};
    char bytes[20'000];
    for (;;) {
      pollfd events[2] = {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}};
      CHECK(::poll(events, 2, 20'000) > 0);
      for (int from : {0, 1}) {
        if (events[from].revents == 0) continue;
        auto n = ::recv(ends_[from].get(), bytes, sizeof bytes, 0);
        if (n <= 0) {
          for (auto& end : ends_) end.reset();
          return;
        }
        auto size = static_cast<std::size_t>(n);
        hook_(from == 0, offsets[from], {bytes, size});
        offsets[from] += size;
        for (std::size_t at = 0; at < size;) {
          pollfd writable{ends_[1 - from].get(), POLLOUT, 0};
          CHECK(::poll(&writable, 1, 20'000) > 0);
          auto sent = ::send(ends_[1 - from].get(), bytes + at, size - at, MSG_NOSIGNAL);
          if (sent < 0) break;  // the reader of the other end detects it
          at += static_cast<std::size_t>(sent);
        }
      }
    }
  }

  Fd ends_[2];
  Hook hook_;
  std::thread thread_;
};

// Two ends of a connection with a proxy between them.
inline std::tuple<Fd, Fd, std::unique_ptr<Proxy>> proxied_pair(Proxy::Hook hook) {
  auto [mine, near] = testing::tcp_pair();
  auto [far, its] = testing::tcp_pair();
  auto proxy = std::make_unique<Proxy>(std::move(near), std::move(far), std::move(hook));
  return {std::move(mine), std::move(its), std::move(proxy)};
}

}  // namespace headrace::tls
