#include "executor/control_stream.hpp"

#include <cstring>

namespace headrace {

bool ControlStream::progress() {
  bool any = false;
  while (can_read() && fill(kStagingBytes)) any = true;
  Header header;
  while (staged() >= sizeof header) {
    std::memcpy(&header, front(), sizeof header);
    if (header.lane == kGoodbyeLane) {
      said_goodbye_ = true;
    } else if (header.lane == kAbortLane) {
      if (staged() < sizeof header + header.length) break;
      const auto* text = reinterpret_cast<const char*>(front()) + sizeof header;
      aborted_ = {static_cast<int>(header.collective), std::string(text, header.length)};
      use(header.length);
    }
    use(sizeof header);
  }
  return any;
}

void ControlStream::send_frame(const Header& header, const std::string& text) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof header},
                    {const_cast<char*>(text.data()), text.size()}};
  if (can_write()) send(parts, 2, sizeof header + text.size());
}

void ControlStream::send_goodbye() { send_frame({0, 0, kGoodbyeLane, 0}, ""); }

void ControlStream::send_abort(int culprit, const std::string& text) {
  auto brief = text.substr(0, 1000);
  send_frame({0, static_cast<std::uint32_t>(culprit), kAbortLane,
              static_cast<std::uint32_t>(brief.size())},
             brief);
}

}  // namespace headrace
