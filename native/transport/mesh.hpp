// A full mesh of TCP connections between the ranks of one group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/fd.hpp"

namespace headrace {

using Clock = std::chrono::steady_clock;

// A peer died, a deadline passed, or a stream broke.
class CommunicationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Link {
  Fd fd;
  int peer;
  std::int32_t channel;  // kControlChannel, kPointToPointChannel, or a data channel
};

// Listens from construction on, so that its address can be told to the others before `connect`.
class Mesh {
 public:
  // `host` is the numeric address to listen on; `token` (up to 64 bytes) keeps strangers out.
  Mesh(int rank, int ranks, const std::string& host, const std::string& token, int channels);

  const std::string& address() const { return address_; }  // "host:port" or "[host]:port"

  // Connects to every other rank, then stops listening, however it ends. Throws
  // CommunicationError naming the ranks that could not be reached by the deadline. `interrupted`
  // is called now and then; what it throws ends the attempt.
  std::vector<Link> connect(const std::vector<std::string>& addresses, Clock::time_point deadline,
                            const std::function<void()>& interrupted = {});

  void stop_listening() { listener_.reset(); }

 private:
  using Interrupted = std::function<void()>;
  std::vector<Link> connect_all(const std::vector<std::string>& addresses,
                                Clock::time_point deadline, const Interrupted& interrupted);
  Fd dial(const std::string& address, int peer, Clock::time_point deadline,
          const Interrupted& interrupted) const;
  void accept_one(std::vector<Link>& links, std::vector<int>& missing, Clock::time_point deadline,
                  const Interrupted& interrupted);
  bool introduce(int fd, std::int32_t channel) const;

  int rank_;
  int ranks_;
  int channels_;
  std::string token_;
  std::string host_;
  std::string address_;
  Fd listener_;
};

// Limits the rate at which the kernel sends on a socket (TCP's own pacing); 0 lifts the limit.
void set_pacing(int fd, std::uint64_t bytes_per_s);

}  // namespace headrace
