// The control connection to one peer: tells an orderly end from a death, carries aborts, and finds
// out whether the peer's process runs at all.
#pragma once

#include <optional>
#include <string>

#include "executor/stream.hpp"

namespace headrace {

class ControlStream final : public Stream {
 public:
  ControlStream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel, int ranks)
      : Stream(std::move(connection), peer, channel), ranks_(ranks) {}

  bool progress(const Leave&) override { return progress(); }
  // Reads the frames that have come, answers heartbeats, and goes on sending. Returns whether any
  // frame came. Throws ProtocolError.
  bool progress();
  bool busy() const override { return false; }
  void drop() override {}

  // At once where the socket has room, as it has unless the peer is stopped; else later.
  void send_goodbye();
  void send_abort(int culprit, const std::string& text);

  bool said_goodbye() const { return said_goodbye_; }
  struct Abort {
    int culprit;
    std::string text;
  };
  const std::optional<Abort>& aborted() const { return aborted_; }

  // Sends a heartbeat, which the executor's own thread at the peer answers. None while the one
  // before is unanswered, so that they do not pile up at a process that is stopped.
  void beat(Clock::time_point now);
  // When the heartbeat was sent that is unanswered, if one is.
  const std::optional<Clock::time_point>& unanswered() const { return unanswered_; }

 private:
  void take(const Header& header, std::string text);
  void send_frame(const Header& header, const std::string& text);
  void flush();

  int ranks_;
  std::string out_;  // not sent yet
  bool said_goodbye_ = false;
  bool owes_answer_ = false;
  std::optional<Abort> aborted_;
  std::optional<Clock::time_point> unanswered_;
};

}  // namespace headrace
