// The control connection to a peer: orderly end, aborts, and heartbeats that tell whether the
// peer's process runs.
#pragma once

#include <optional>
#include <string>

#include "executor/stream.hpp"

namespace headrace {

class ControlStream final : public Stream {
 public:
  ControlStream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel, int ranks)
      : Stream(std::move(connection), peer, channel), ranks_(ranks) {}

  bool progress(const Unlock&) override { return progress(); }
  // Reads the frames that have come, answers heartbeats, and continues sending. Returns whether any
  // frame came. Throws ProtocolError.
  bool progress();
  bool busy() const override { return false; }
  void drop() override {}

  // Sent at once if the socket has room, as it has unless the peer is stopped; else later.
  void send_goodbye();
  void send_abort(int culprit, const std::string& text);

  bool goodbye_received() const { return goodbye_received_; }
  struct Abort {
    int culprit;
    std::string text;
  };
  const std::optional<Abort>& aborted() const { return aborted_; }

  // Sends a heartbeat, answered by the io thread of the peer's executor. None while the last one is
  // unanswered, so that they do not pile up at a stopped process.
  void beat(Clock::time_point now);
  // Time at which the unanswered heartbeat was sent, if there is one.
  const std::optional<Clock::time_point>& unanswered() const { return unanswered_; }

 private:
  void take(const Header& header, std::string text);
  void send_frame(const Header& header, const std::string& text);
  void flush();

  int ranks_;
  std::string out_;  // not sent yet
  bool goodbye_received_ = false;
  bool owes_answer_ = false;
  std::optional<Abort> aborted_;
  std::optional<Clock::time_point> unanswered_;
};

}  // namespace headrace
