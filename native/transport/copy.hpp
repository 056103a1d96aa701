// Non-temporal copies: for data that is not read again soon.
#pragma once

#include <cstddef>

namespace headrace {

// memcpy with non-temporal stores: a destination larger than the caches is not read before it is
// written, a third less memory traffic.
void copy_past_caches(std::byte* into, const std::byte* from, std::size_t bytes);

}  // namespace headrace
