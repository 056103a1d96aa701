#include "executor/stream.hpp"

#include <cstring>
#include <utility>

namespace headrace {

bool Stream::take_header(Header& header, std::size_t most) {
  auto came = connection_->peek(sizeof header, most);
  if (came.size() < sizeof header) return false;
  std::memcpy(&header, came.data(), sizeof header);
  return connection_->use(sizeof header);
}

void Stream::release() {
  owned_ = false;
  ready(false, false, false);
}

void Stream::ready(bool readable, bool writable, bool hangup) {
  readable_ |= readable;
  writable_ |= writable;
  hangup_ |= hangup;
  if (owned_ || !(readable_ || writable_ || hangup_)) return;
  connection_->ready(std::exchange(readable_, false), std::exchange(writable_, false),
                     std::exchange(hangup_, false));
}

}  // namespace headrace
