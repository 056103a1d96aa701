#include "transport/mesh.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "transport/wire.hpp"

namespace headrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetry{20};
constexpr milliseconds kTick{100};
constexpr milliseconds kHelloPatience{2000};

[[noreturn]] void fail(const std::string& what) {
  throw CommunicationError(what + ": " + std::strerror(errno));
}

// Waits until `fd` is ready for `events`; false at the deadline. Signals do not end the wait unless
// `interrupted` throws.
bool wait_ready(int fd, short events, Clock::time_point deadline,
                const std::function<void()>& interrupted) {
  for (;;) {
    auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd waiting{fd, events, 0};
    auto patience = std::clamp(left, milliseconds{0}, kTick);
    int n = ::poll(&waiting, 1, static_cast<int>(patience.count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) fail("cannot wait for a connection");
    if (interrupted) interrupted();
    if (Clock::now() >= deadline) return false;
  }
}

struct AddrinfoDeleter {
  void operator()(addrinfo* info) const { ::freeaddrinfo(info); }
};
using Resolved = std::unique_ptr<addrinfo, AddrinfoDeleter>;

Resolved resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    throw std::invalid_argument("address '" + host + "' port '" + port +
                                "' is not a numeric address: " + ::gai_strerror(code));
  }
  return Resolved(found);
}

std::pair<std::string, std::string> split_address(const std::string& address) {
  auto colon = address.rfind(':');
  if (colon == std::string::npos) {
    throw std::invalid_argument("address '" + address + "' is not host:port");
  }
  auto host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host, address.substr(colon + 1)};
}

void set_option(int fd, int level, int name, int value) {
  // Best effort: a socket without one of these still carries data correctly.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void prepare(int fd, std::int32_t channel) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (channel == kControlChannel) {
    // A host that vanishes without a word is noticed here even while nothing is being sent.
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  }
}

bool read_fully(int fd, void* into, std::size_t size, Clock::time_point deadline,
                const std::function<void()>& interrupted) {
  auto* out = static_cast<char*>(into);
  while (size > 0) {
    if (!wait_ready(fd, POLLIN, deadline, interrupted)) return false;
    auto n = ::recv(fd, out, size, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return false;
    out += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

Mesh::Mesh(int rank, int ranks, const std::string& host, const std::string& token, int channels)
    : rank_(rank), ranks_(ranks), channels_(channels), token_(token), host_(host) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " is not in a group of " +
                                std::to_string(ranks));
  }
  if (token.size() > sizeof Hello::token) throw std::invalid_argument("token is over 64 bytes");
  if (channels < 1) throw std::invalid_argument("channels is less than 1");
  auto target = resolve(host, "0");
  listener_ = Fd(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) fail("cannot make a socket");
  if (::bind(listener_.get(), target->ai_addr, target->ai_addrlen) != 0) {
    fail("cannot listen on " + host);
  }
  if (::listen(listener_.get(), 4096) != 0) fail("cannot listen on " + host);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    fail("cannot read the listening address");
  }
  bool v6 = bound.ss_family == AF_INET6;
  auto port = v6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                 : reinterpret_cast<sockaddr_in&>(bound).sin_port;
  address_ = (v6 ? "[" + host + "]" : host) + ":" + std::to_string(ntohs(port));
}

std::vector<Link> Mesh::connect(const std::vector<std::string>& addresses,
                                Clock::time_point deadline, const Interrupted& interrupted) {
  try {
    auto links = connect_all(addresses, deadline, interrupted);
    stop_listening();
    return links;
  } catch (...) {
    stop_listening();
    throw;
  }
}

std::vector<Link> Mesh::connect_all(const std::vector<std::string>& addresses,
                                    Clock::time_point deadline, const Interrupted& interrupted) {
  if (addresses.size() != static_cast<std::size_t>(ranks_)) {
    throw std::invalid_argument(std::to_string(addresses.size()) + " addresses for " +
                                std::to_string(ranks_) + " ranks");
  }
  // Lower ranks are dialled, higher ranks dial us. Nobody waits for an accept to be answered
  // (the kernel's backlog completes the connection), so the order cannot deadlock.
  std::vector<Link> links;
  for (int peer = 0; peer < rank_; ++peer) {
    for (std::int32_t channel = kControlChannel; channel < channels_; ++channel) {
      auto fd = dial(addresses[static_cast<std::size_t>(peer)], peer, deadline, interrupted);
      if (!introduce(fd.get(), channel)) fail("rank " + std::to_string(peer) + " hung up");
      prepare(fd.get(), channel);
      links.push_back({std::move(fd), peer, channel});
    }
  }
  std::vector<int> missing(static_cast<std::size_t>(ranks_), 0);
  for (int peer = rank_ + 1; peer < ranks_; ++peer) {
    missing[static_cast<std::size_t>(peer)] = channels_ - kControlChannel;
  }
  while (std::any_of(missing.begin(), missing.end(), [](int left) { return left > 0; })) {
    accept_one(links, missing, deadline, interrupted);
  }
  return links;
}

Fd Mesh::dial(const std::string& address, int peer, Clock::time_point deadline,
              const Interrupted& interrupted) const {
  auto [host, port] = split_address(address);
  auto target = resolve(host, port);
  auto source = resolve(host_, "0");
  auto named = "rank " + std::to_string(peer) + " at " + address;
  for (;;) {
    Fd fd(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) fail("cannot make a socket");
    // From the address we listen on, so that traffic uses the chosen interface.
    if (target->ai_family == source->ai_family) {
      (void)::bind(fd.get(), source->ai_addr, source->ai_addrlen);
    }
    int code = ::connect(fd.get(), target->ai_addr, target->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      if (!wait_ready(fd.get(), POLLOUT, deadline, interrupted)) {
        throw CommunicationError(named + " did not answer by the deadline");
      }
      socklen_t size = sizeof code;
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size);
    }
    if (code == 0) return fd;
    if (Clock::now() + kRetry >= deadline) {
      errno = code;
      fail(named + " could not be reached by the deadline");
    }
    if (interrupted) interrupted();
    std::this_thread::sleep_for(kRetry);
  }
}

bool Mesh::introduce(int fd, std::int32_t channel) const {
  Hello hello{Hello::kMagic, static_cast<std::uint32_t>(rank_), channel, {}};
  std::copy(token_.begin(), token_.end(), hello.token.begin());
  return ::send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello);
}

void Mesh::accept_one(std::vector<Link>& links, std::vector<int>& missing,
                      Clock::time_point deadline, const Interrupted& interrupted) {
  if (!wait_ready(listener_.get(), POLLIN, deadline, interrupted)) {
    std::vector<int> absent;
    for (int peer = 0; peer < ranks_; ++peer) {
      if (missing[static_cast<std::size_t>(peer)] > 0) absent.push_back(peer);
    }
    throw CommunicationError("rank " + listed(absent) + " did not connect to rank " +
                             std::to_string(rank_) + " by the deadline");
  }
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    fail("cannot accept a connection");
  }
  Hello hello{};
  auto patience = std::min(deadline, Clock::now() + kHelloPatience);
  if (!read_fully(fd.get(), &hello, sizeof hello, patience, interrupted)) return;
  std::array<char, 64> token{};
  std::copy(token_.begin(), token_.end(), token.begin());
  auto peer = static_cast<std::size_t>(hello.rank);
  if (hello.magic != Hello::kMagic || hello.token != token || peer >= missing.size() ||
      hello.channel >= channels_ || hello.channel < kControlChannel || missing[peer] == 0) {
    return;  // a stranger: hang up and go on
  }
  --missing[peer];
  prepare(fd.get(), hello.channel);
  links.push_back({std::move(fd), static_cast<int>(hello.rank), hello.channel});
}

void set_pacing(int fd, std::uint64_t bytes_per_s) {
  auto rate = bytes_per_s == 0 ? ~std::uint64_t{0} : bytes_per_s;
  (void)::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

}  // namespace headrace
