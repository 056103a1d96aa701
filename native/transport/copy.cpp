#include "transport/copy.hpp"

#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>

#include <cstdint>
#endif

namespace headrace {
namespace {

#ifdef __x86_64__
constexpr std::size_t kLine = 64;

// Both copy whole lines to a line-aligned destination.
void stream_lines_sse2(std::byte* into, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, into += kLine, from += kLine) {
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
}

__attribute__((target("avx2"))) void stream_lines_avx2(std::byte* into, const std::byte* from,
                                                       std::size_t lines) {
  for (; lines > 0; --lines, into += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(into);
    auto a = _mm256_loadu_si256(source);
    auto b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
  }
}

const auto stream_lines = __builtin_cpu_supports("avx2") ? stream_lines_avx2 : stream_lines_sse2;
#endif

}  // namespace

void copy_past_caches(std::byte* into, const std::byte* from, std::size_t bytes) {
#ifdef __x86_64__
  auto misaligned = reinterpret_cast<std::uintptr_t>(into) % kLine;
  auto head = misaligned == 0 ? 0 : kLine - misaligned;
  if (bytes >= head + kLine) {
    std::memcpy(into, from, head);
    auto lines = (bytes - head) / kLine;
    stream_lines(into + head, from + head, lines);
    _mm_sfence();
    auto done = head + lines * kLine;
    into += done;
    from += done;
    bytes -= done;
  }
#endif
  std::memcpy(into, from, bytes);
}

}  // namespace headrace
