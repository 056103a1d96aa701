// Searches in arrays of codes and of fingerprints, with vector instructions where no writer can be
// beside: a vector load of what another thread stores would be a data race.
//
// The library is built for the processors of its platform in general: what all of them have is used
// directly, the rest is compiled for the instruction set by itself and chosen at run time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "index/memory/sharing.hpp"

namespace headrace::index {

namespace detail {

inline std::ptrdiff_t find_code_scalar(const std::uint64_t* codes, std::size_t first,
                                       std::size_t end, std::uint64_t code) {
  for (auto i = first; i < end; ++i) {
    if (codes[i] == code) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline std::ptrdiff_t find_code_avx2(const std::uint64_t* codes,
                                                             std::size_t first, std::size_t end,
                                                             std::uint64_t code) {
  const auto wanted = _mm256_set1_epi64x(static_cast<long long>(code));
  const auto equal = [&](std::size_t i) __attribute__((target("avx2"), always_inline)) {
    return _mm256_cmpeq_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)),
                              wanted);
  };
  auto i = first;
  for (; i + 8 <= end; i += 8) {
    const auto low = equal(i);
    const auto high = equal(i + 4);
    if (_mm256_testz_si256(_mm256_or_si256(low, high), _mm256_or_si256(low, high))) continue;
    const auto bits = _mm256_movemask_pd(_mm256_castsi256_pd(low)) |
                      _mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4;
    return static_cast<std::ptrdiff_t>(i) + std::countr_zero(static_cast<unsigned>(bits));
  }
  return find_code_scalar(codes, i, end, code);
}

[[gnu::target("avx512f")]] inline std::ptrdiff_t find_code_avx512(const std::uint64_t* codes,
                                                                  std::size_t first,
                                                                  std::size_t end,
                                                                  std::uint64_t code) {
  const auto wanted = _mm512_set1_epi64(static_cast<long long>(code));
  auto i = first;
  for (; i + 8 <= end; i += 8) {
    const auto bits = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(codes + i), wanted);
    if (bits != 0) {
      return static_cast<std::ptrdiff_t>(i) + std::countr_zero(static_cast<unsigned>(bits));
    }
  }
  return find_code_scalar(codes, i, end, code);
}
#endif

using FindCode = std::ptrdiff_t (*)(const std::uint64_t*, std::size_t, std::size_t, std::uint64_t);

inline FindCode choose_find_code() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return find_code_avx512;
  if (__builtin_cpu_supports("avx2")) return find_code_avx2;
#endif
  return find_code_scalar;
}
inline const FindCode find_code = choose_find_code();

}  // namespace detail

// Position of a code among those from `first` to `end`, or a negative number.
template <class Sharing>
std::ptrdiff_t position_of(const std::uint64_t* codes, std::size_t first, std::size_t end,
                           std::uint64_t code) {
  if constexpr (Sharing::kShared) {
    for (auto i = first; i < end; ++i) {
      if (Sharing::load(codes + i) == code) return static_cast<std::ptrdiff_t>(i);
    }
    return -1;
  } else {
    return detail::find_code(codes, first, end, code);
  }
}

// First of `count` ascending codes that is at least `code`; `count` if none is.
template <class Sharing>
std::size_t lower_bound_of(const std::uint64_t* codes, std::size_t count, std::uint64_t code) {
  std::size_t first = 0;
  while (count > 0) {  // without branches on codes, which cannot be predicted
    const auto half = count / 2;
    const bool below = Sharing::load(codes + first + half) < code;
    first = below ? first + half + 1 : first;
    count = below ? count - half - 1 : half;
  }
  return first;
}

// Fetches what is about to be read in order, at most some lines: by the time that these are read,
// the processor fetches ahead by itself.
template <class T>
void prefetch_some(const T* from, std::size_t count) {
  constexpr std::size_t kMostLines = 24;
  const auto* bytes = reinterpret_cast<const char*>(from);
  const auto lines = std::min(kMostLines, (count * sizeof(T) + kLineBytes - 1) / kLineBytes);
  for (std::size_t line = 0; line < lines; ++line) __builtin_prefetch(bytes + line * kLineBytes);
}

constexpr std::size_t kFingerprintsAtOnce = 16;

// Bit i: byte i of these words is `byte`. Reads at most `bytes`, a multiple of eight.
template <class Sharing>
std::uint32_t equal_fingerprints(const std::uint64_t* words, std::uint8_t byte, std::size_t bytes) {
#if defined(__SSE2__)
  if constexpr (!Sharing::kShared) {
    const auto loaded = bytes >= 16 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(words))
                                    : _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words));
    const auto equal = _mm_cmpeq_epi8(loaded, _mm_set1_epi8(static_cast<char>(byte)));
    const auto found = static_cast<std::uint32_t>(_mm_movemask_epi8(equal));
    return bytes >= 16 ? found : found & 0xff;
  }
#endif
  std::uint32_t found = 0;
  for (std::size_t word = 0; word < 2 && word * 8 < bytes; ++word) {
    // Bytes that are equal become 0; the highest bit of each other byte, 1, without carries.
    constexpr std::uint64_t kLow = 0x7f7f'7f7f'7f7f'7f7f;
    const auto different = Sharing::load(words + word) ^ byte * 0x0101'0101'0101'0101U;
    const auto zero = ~(((different & kLow) + kLow) | different | kLow);
    found |= static_cast<std::uint32_t>((zero >> 7) * 0x0102'0408'1020'4080 >> 56) << (8 * word);
  }
  return found;
}

}  // namespace headrace::index
