#include "executor/stream.hpp"

#include <cstring>

namespace headrace {

bool Stream::take_header(Header& header, std::size_t most) {
  auto came = connection_->peek(sizeof header, most);
  if (came.size() < sizeof header) return false;
  std::memcpy(&header, came.data(), sizeof header);
  return connection_->use(sizeof header);
}

}  // namespace headrace
