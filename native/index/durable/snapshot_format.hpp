// Layout of a snapshot: all rows of a map, ascending by code, in one file.
//
//   header | code blocks | value blocks | index
//
// Codes and values are two columns, so that a tree is built straight from the mapped file. Each
// column is cut into blocks of equal length (the last one is filled up with zeros), and the index
// has a checksum of each block, and the first code of each code block. Numbers are little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "index/durable/checksum.hpp"
#include "index/durable/files.hpp"

namespace headrace::index {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

// The keys that codes stand for (code.hpp).
enum class KeyKind : std::uint32_t { unsigned_integer = 1, signed_integer = 2, floating = 3 };

inline std::string name_of(KeyKind keys) {
  switch (keys) {
    case KeyKind::unsigned_integer:
      return "unsigned integers";
    case KeyKind::signed_integer:
      return "signed integers";
    case KeyKind::floating:
      return "floating-point numbers";
  }
  return "kind " + std::to_string(static_cast<std::uint32_t>(keys));
}

// The rows that a file holds.
struct RowFormat {
  std::uint32_t width = 8;  // bytes of a value
  KeyKind keys = KeyKind::unsigned_integer;

  bool operator==(const RowFormat&) const = default;
};

// Throws std::invalid_argument unless the file's rows are those of the map that opens it.
inline void check_format(const std::string& path, const RowFormat& found, const RowFormat& needed) {
  if (found == needed) return;
  auto words = [](const RowFormat& format) {
    return "keys that are " + name_of(format.keys) + " and values of " +
           std::to_string(format.width) + " bytes";
  };
  throw std::invalid_argument(path + ": holds " + words(found) + "; the map has " + words(needed));
}

inline std::span<const std::byte> bytes_of(const auto& object) {
  return std::as_bytes(std::span(&object, 1));
}

inline std::string hexadecimal(std::uint32_t number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[number >> shift & 15];
  return text;
}

namespace snapshot {

inline constexpr char kMagic[8] = {'h', 'r', 'o', 'w', 's', '\r', '\n', '\0'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 4096;  // blocks of whole pages begin at pages

struct Header {
  char magic[8] = {};
  std::uint32_t version = kVersion;
  KeyKind keys = KeyKind::unsigned_integer;
  std::uint32_t width = 0;
  std::uint32_t block_bytes = 0;
  std::uint64_t count = 0;       // rows
  std::uint64_t generation = 0;  // holds the changes of all logs of lower generations
  std::uint64_t sequence = 0;    // of the last group of changes that it holds
  std::uint64_t file_bytes = 0;
  std::uint32_t index_checksum = 0;
  std::uint32_t checksum = 0;  // of the fields above
};
static_assert(sizeof(Header) == 64);

inline std::uint32_t header_checksum(const Header& header) {
  return crc32c(bytes_of(header).first(offsetof(Header, checksum)));
}

// Where the parts of a file are.
struct Layout {
  std::uint64_t code_blocks, value_blocks, codes_at, values_at, index_at, index_bytes, file_bytes;

  Layout(std::uint64_t count, std::uint32_t width, std::uint32_t block_bytes) {
    auto blocks = [block_bytes](std::uint64_t bytes) {
      return bytes / block_bytes + (bytes % block_bytes != 0);
    };
    code_blocks = blocks(count * sizeof(std::uint64_t));
    value_blocks = blocks(count * width);
    codes_at = kHeaderBytes;
    values_at = codes_at + code_blocks * block_bytes;
    index_at = values_at + value_blocks * block_bytes;
    index_bytes =
        code_blocks * sizeof(std::uint64_t) + (code_blocks + value_blocks) * sizeof(std::uint32_t);
    file_bytes = index_at + index_bytes;
  }
};

// Throws std::invalid_argument unless a file may have such blocks: whole codes, aligned values.
inline void check_block_bytes(std::uint32_t block_bytes) {
  if (block_bytes >= 64 && block_bytes <= 1U << 30 && block_bytes % 64 == 0) return;
  throw std::invalid_argument("block_bytes: a multiple of 64 from 64 to 2^30 is needed, found " +
                              std::to_string(block_bytes));
}

}  // namespace snapshot
}  // namespace headrace::index
