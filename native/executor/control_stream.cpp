#include "executor/control_stream.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr std::size_t kMostTextBytes = 1000;

}  // namespace

bool ControlStream::progress(const Leave&) {
  bool any = false;
  for (;;) {
    // A frame is used as a whole: it is short.
    auto came = connection().peek(sizeof(Header), kFetchBytes);
    if (came.size() < sizeof(Header)) return any;
    Header header;
    std::memcpy(&header, came.data(), sizeof header);
    if (header.length > kMostTextBytes) {
      throw ProtocolError("rank " + std::to_string(peer()) + " sent " +
                          std::to_string(header.length) + " bytes of text, at most " +
                          std::to_string(kMostTextBytes) + " are possible");
    }
    auto bytes = sizeof header + header.length;
    came = connection().peek(bytes, kFetchBytes);
    if (came.size() < bytes) return any;
    if (header.lane == kGoodbyeLane) {
      said_goodbye_ = true;
    } else if (header.lane == kAbortLane) {
      const auto* text = reinterpret_cast<const char*>(came.data()) + sizeof header;
      aborted_ = {static_cast<int>(header.collective), std::string(text, header.length)};
    }
    connection().use(bytes);
    any = true;
  }
}

void ControlStream::send_frame(const Header& header, const std::string& text) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof header},
                    {const_cast<char*>(text.data()), text.size()}};
  connection().send(parts, 2, 0);
}

void ControlStream::send_goodbye() { send_frame({0, 0, kGoodbyeLane, 0}, ""); }

void ControlStream::send_abort(int culprit, const std::string& text) {
  auto brief = text.substr(0, kMostTextBytes);
  send_frame({0, static_cast<std::uint32_t>(culprit), kAbortLane,
              static_cast<std::uint32_t>(brief.size())},
             brief);
}

}  // namespace headrace
