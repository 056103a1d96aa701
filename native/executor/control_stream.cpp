#include "executor/control_stream.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr std::size_t kMostTextBytes = 1000;

}  // namespace

bool ControlStream::progress() {
  bool any = false;
  for (;;) {
    // Frames are short, so each is read as a whole.
    auto came = connection().peek(sizeof(Header), kFetchBytes);
    if (came.size() < sizeof(Header)) break;
    Header header;
    std::memcpy(&header, came.data(), sizeof header);
    if (header.length > kMostTextBytes) {
      throw ProtocolError("rank " + std::to_string(peer()) + " sent " +
                          std::to_string(header.length) + " bytes of text, at most " +
                          std::to_string(kMostTextBytes) + " are possible");
    }
    auto bytes = sizeof header + header.length;
    came = connection().peek(bytes, kFetchBytes);
    if (came.size() < bytes) break;
    std::string text(reinterpret_cast<const char*>(came.data()) + sizeof header, header.length);
    connection().use(bytes);
    take(header, std::move(text));
    any = true;
  }
  if (owes_answer_ && out_.empty()) {
    owes_answer_ = false;
    send_frame({0, 0, kAnswerLane, 0}, "");
  } else if (!out_.empty()) {
    flush();
  }
  return any;
}

void ControlStream::take(const Header& header, std::string text) {
  bool plain = header.epoch == 0 && header.collective == 0 && text.empty();
  if (header.lane == kGoodbyeLane && plain) {
    goodbye_received_ = true;
  } else if (header.lane == kBeatLane && plain) {
    owes_answer_ = true;
  } else if (header.lane == kAnswerLane && plain && unanswered_) {
    unanswered_.reset();
  } else if (header.lane == kAbortLane && header.collective < static_cast<std::uint32_t>(ranks_)) {
    aborted_ = {static_cast<int>(header.collective), std::move(text)};
  } else {
    throw ProtocolError("rank " + std::to_string(peer()) + " sent a control frame (lane " +
                        std::to_string(header.lane) + ") that was not expected");
  }
}

void ControlStream::send_frame(const Header& header, const std::string& text) {
  out_.append(reinterpret_cast<const char*>(&header), sizeof header).append(text);
  flush();
}

void ControlStream::flush() {
  iovec part{out_.data(), out_.size()};
  out_.erase(0, connection().send(&part, 1, 0));
}

void ControlStream::send_goodbye() { send_frame({0, 0, kGoodbyeLane, 0}, ""); }

void ControlStream::send_abort(int culprit, const std::string& text) {
  auto size = std::min(text.size(), kMostTextBytes);
  while (size < text.size() && size > 0 && (text[size] & 0xc0) == 0x80) --size;  // UTF-8
  auto brief = text.substr(0, size);
  send_frame({0, static_cast<std::uint32_t>(culprit), kAbortLane,
              static_cast<std::uint32_t>(brief.size())},
             brief);
}

void ControlStream::beat(Clock::time_point now) {
  if (unanswered_) return;
  unanswered_ = now;
  send_frame({0, 0, kBeatLane, 0}, "");
}

}  // namespace headrace
