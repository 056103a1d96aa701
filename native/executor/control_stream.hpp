// The control connection to one peer: how its end is told apart from its death.
#pragma once

#include <functional>
#include <string>

#include "executor/stream.hpp"

namespace headrace {

class ControlStream final : public Stream {
 public:
  using Stream::Stream;

  bool progress(const Leave& leave) override;
  bool busy() const override { return false; }
  void drop() override {}

  // Best effort and at once: the connection is idle but for these few bytes.
  void send_goodbye();
  void send_abort(int culprit, const std::string& text);

  bool said_goodbye() const { return said_goodbye_; }
  struct Abort {
    int culprit;
    std::string text;
  };
  const std::optional<Abort>& aborted() const { return aborted_; }

 private:
  void send_frame(const Header& header, const std::string& text);

  bool said_goodbye_ = false;
  std::optional<Abort> aborted_;
};

}  // namespace headrace
