// Copying what will not be read again soon.
#pragma once

#include <cstddef>

#if defined(__SSE2__)
#include <emmintrin.h>

#include <cstdint>
#endif
#include <cstring>

namespace headrace::shm {

// memcpy past the caches: a destination that does not fit into them is written without being read
// first, a third less traffic for the memory.
inline void copy_past_caches(std::byte* into, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  auto misaligned = reinterpret_cast<std::uintptr_t>(into) % kLine;
  auto head = misaligned == 0 ? 0 : kLine - misaligned;
  if (bytes < head + kLine) {
    std::memcpy(into, from, bytes);
    return;
  }
  std::memcpy(into, from, head);
  into += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine, into += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(into);
    auto a = _mm_loadu_si128(source);
    auto b = _mm_loadu_si128(source + 1);
    auto c = _mm_loadu_si128(source + 2);
    auto d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(into, from, bytes);
}

}  // namespace headrace::shm
