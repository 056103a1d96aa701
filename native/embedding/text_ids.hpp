// Ids of rows whose features are texts: a hash that is the same in every process and version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace headrace::embedding {

// Hash of 63 bits: FNV-1a of 64 bits over the bytes, mixed by SplitMix64's last steps, without its
// lowest bit. (FNV-1a alone changes only few of the high bits with the last bytes.)
inline std::int64_t text_id(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const auto byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9U;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebU;
  return static_cast<std::int64_t>((hash ^ (hash >> 31)) >> 1);
}

// Ids of the texts between consecutive offsets; there is one id less than offsets.
inline void text_ids(const char* bytes, std::span<const std::int64_t> offsets, std::int64_t* ids) {
  for (std::size_t text = 0; text + 1 < offsets.size(); ++text) {
    const auto length = static_cast<std::size_t>(offsets[text + 1] - offsets[text]);
    ids[text] = text_id({bytes + offsets[text], length});
  }
}

}  // namespace headrace::embedding
