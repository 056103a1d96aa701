// CRC-32C (Castagnoli, reflected) of bytes: by the processor's instruction where it has one, chosen
// at run time, and by tables elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HEADRACE_INDEX_CRC_INSTRUCTION
#endif

namespace headrace::index {
namespace checksum {

using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: remainder of byte b followed by k zero bytes.
constexpr std::array<Table, 8> remainders() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f6'3b78U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      auto crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 255];
    }
  }
  return tables;
}

inline constexpr auto kRemainders = remainders();

inline std::uint64_t load_word(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Continues the inverted checksum `crc`, eight bytes at a time.
inline std::uint32_t by_tables(std::uint32_t crc, const std::byte* from, std::size_t bytes) {
  const auto& t = kRemainders;
  for (; bytes >= 8; from += 8, bytes -= 8) {
    auto word = load_word(from) ^ crc;
    crc = t[7][word & 255] ^ t[6][word >> 8 & 255] ^ t[5][word >> 16 & 255] ^
          t[4][word >> 24 & 255] ^ t[3][word >> 32 & 255] ^ t[2][word >> 40 & 255] ^
          t[1][word >> 48 & 255] ^ t[0][word >> 56];
  }
  for (; bytes > 0; ++from, --bytes) {
    crc = crc >> 8 ^ t[0][(crc ^ static_cast<std::uint32_t>(*from)) & 255];
  }
  return crc;
}

#ifdef HEADRACE_INDEX_CRC_INSTRUCTION
// Three stretches are summed at once, because an instruction's result is ready after three cycles.
inline constexpr std::size_t kStretch = 1024;

// tables[k][b]: byte k of a remainder, being b, after a stretch of zero bytes.
constexpr std::array<Table, 4> stretch_of_zeros() {
  std::array<std::uint32_t, 32> moved{};
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = 1U << bit;
    for (std::size_t i = 0; i < kStretch; ++i) crc = crc >> 8 ^ kRemainders[0][crc & 255];
    moved[bit] = crc;
  }
  std::array<Table, 4> tables{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      for (std::size_t bit = 0; bit < 8; ++bit) {
        if (byte >> bit & 1) tables[k][byte] ^= moved[8 * k + bit];
      }
    }
  }
  return tables;
}

inline constexpr auto kStretchOfZeros = stretch_of_zeros();

inline std::uint32_t past_stretch(std::uint32_t crc) {
  const auto& t = kStretchOfZeros;
  return t[0][crc & 255] ^ t[1][crc >> 8 & 255] ^ t[2][crc >> 16 & 255] ^ t[3][crc >> 24];
}

__attribute__((target("sse4.2"))) inline std::uint32_t by_instruction(std::uint32_t crc,
                                                                      const std::byte* from,
                                                                      std::size_t bytes) {
  for (; bytes >= 3 * kStretch; from += 3 * kStretch, bytes -= 3 * kStretch) {
    std::uint64_t first = crc, second = 0, third = 0;
    for (std::size_t i = 0; i < kStretch; i += 8) {
      first = _mm_crc32_u64(first, load_word(from + i));
      second = _mm_crc32_u64(second, load_word(from + kStretch + i));
      third = _mm_crc32_u64(third, load_word(from + 2 * kStretch + i));
    }
    auto joined =
        past_stretch(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    crc = past_stretch(joined) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t rest = crc;
  for (; bytes >= 8; from += 8, bytes -= 8) rest = _mm_crc32_u64(rest, load_word(from));
  crc = static_cast<std::uint32_t>(rest);
  for (; bytes > 0; ++from, --bytes) crc = _mm_crc32_u8(crc, static_cast<std::uint8_t>(*from));
  return crc;
}
#endif

using Continue = std::uint32_t (*)(std::uint32_t, const std::byte*, std::size_t);

inline Continue fastest() {
#ifdef HEADRACE_INDEX_CRC_INSTRUCTION
  if (__builtin_cpu_supports("sse4.2")) return by_instruction;
#endif
  return by_tables;
}

inline const Continue chosen = fastest();  // no local static: see process.hpp

#undef HEADRACE_INDEX_CRC_INSTRUCTION
}  // namespace checksum

// CRC-32C of `bytes` that follow bytes whose checksum is `before`.
inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  return ~checksum::chosen(~before, bytes.data(), bytes.size());
}

}  // namespace headrace::index
