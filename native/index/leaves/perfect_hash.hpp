// Minimal perfect hash function of up to 65,536 codes: n known codes to the positions 0 ... n-1,
// without a collision. After PTHash (Pibiri and Trani, "PTHash: Revisiting FCH Minimal Perfect
// Hashing", SIGIR 2021): codes fall into buckets, every bucket has a pilot, and a code's position
// is its hash xor the pilot's, reduced to a table that is a little larger than n; positions past
// n - 1 are mapped to those left free below n. perfect_build.hpp finds the pilots.
//
// A bucket is chosen by the hash, or (MAPLE, section 6.2.3) by a linear model of the code: the
// codes of a bucket are then neighbours, and the pilot can be loaded while the code is hashed.
//
// A pilot is one byte. Two bytes are reserved, so that construction ends on any set of codes:
// - kRedirected: the model has put too many codes into this bucket; they are spread by hash over
//   spare buckets that follow the others.
// - kExplicit: no pilot separates the codes of this bucket; they are listed with their positions.
//
// For a code that is not one of the n the position is some number below n: compare the code there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::index {

constexpr std::size_t kMostPerfectCodes = 65'536;

enum class BucketChoice : std::uint8_t { kHash, kModel };

namespace perfect {

constexpr std::uint8_t kRedirected = 254;
constexpr std::uint8_t kExplicit = 255;
constexpr std::uint32_t kPilots = 254;  // those below are tried

__extension__ using Wide = unsigned __int128;

inline std::uint64_t high_product(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 64);
}

// A bijection whose bits depend on all bits of the code.
inline std::uint64_t mix(std::uint64_t code) {
  code ^= code >> 32;
  code *= 0xd6e8feb86659fd93U;
  code ^= code >> 29;
  code *= 0x9fb21c651e98df25U;
  return code ^ code >> 32;
}

// Position in the table. The product moves the difference of two hashes into the high bits, which
// alone decide: two hashes with equal high bits would collide under every pilot otherwise.
inline std::uint32_t table_position(std::uint64_t hash, std::uint32_t pilot, std::uint32_t table) {
  auto keyed = (hash ^ pilot * 0x9e3779b97f4a7c15U) * 0xbea225f9eb34556dU;
  return static_cast<std::uint32_t>(high_product(keyed, table));
}

// Two linear pieces over codes or hashes: `dense` buckets for those below the second's origin, the
// others for the rest. Integer arithmetic, monotone, clamped at both ends.
struct Buckets {
  struct Piece {
    std::uint64_t origin;
    std::uint64_t multiplier;  // buckets per unit, times 2^64
  };
  Piece pieces[2];
  std::uint32_t dense;
  std::uint32_t count;

  std::uint32_t of(std::uint64_t x) const {
    bool upper = x >= pieces[1].origin;
    auto origin = pieces[upper].origin;
    auto offset = x > origin ? x - origin : 0;
    auto found = high_product(offset, pieces[upper].multiplier);
    std::uint32_t first = upper ? dense : 0;
    std::uint64_t last = (upper ? count : dense) - 1;
    return first + static_cast<std::uint32_t>(std::min<std::uint64_t>(found, last - first));
  }
};

}  // namespace perfect

// The constants of a function; its tables are beside it, so that a leaf keeps both in one node:
// pilots, then the positions below n for those past it, then the explicit codes' positions and
// the explicit codes, ascending. Trivially copyable.
struct PerfectHash {
  perfect::Buckets buckets;
  std::uint32_t codes;     // n
  std::uint32_t table;     // positions before those past n - 1 are mapped
  std::uint32_t spare;     // buckets for redirected codes
  std::uint32_t listed;    // explicit codes
  std::uint32_t by_model;  // 1: buckets are chosen by the code, 0: by its hash

  std::size_t remap_at() const { return even(std::size_t{buckets.count} + spare); }
  std::size_t listed_at() const { return remap_at() + 2 * std::size_t{table - codes}; }
  std::size_t list_at() const { return (listed_at() + 2 * std::size_t{listed} + 7) / 8 * 8; }
  std::size_t table_bytes() const { return list_at() + 8 * std::size_t{listed}; }

  // `tables`: table_bytes() bytes, aligned to 8.
  std::uint32_t position(std::uint64_t code, const std::byte* tables) const {
    return position(code, perfect::mix(code), tables);
  }
  std::uint32_t position(std::uint64_t code, std::uint64_t hash, const std::byte* tables) const {
    auto pilot = pilot_at(buckets.of(by_model != 0 ? code : hash), tables);
    if (pilot >= perfect::kPilots) [[unlikely]] {
      if (pilot == perfect::kRedirected) pilot = pilot_at(spare_bucket(hash), tables);
      if (pilot == perfect::kExplicit) return listed_position(code, tables);
    }
    auto found = perfect::table_position(hash, pilot, table);
    return found < codes ? found : at<std::uint16_t>(tables, remap_at(), found - codes);
  }

  std::uint32_t spare_bucket(std::uint64_t hash) const {
    return buckets.count + static_cast<std::uint32_t>(perfect::high_product(hash, spare));
  }

 private:
  static std::size_t even(std::size_t bytes) { return bytes + bytes % 2; }
  static std::uint8_t pilot_at(std::uint32_t bucket, const std::byte* tables) {
    return static_cast<std::uint8_t>(tables[bucket]);
  }
  template <class T>
  static T at(const std::byte* tables, std::size_t offset, std::size_t index) {
    T found;
    std::memcpy(&found, tables + offset + index * sizeof(T), sizeof(T));
    return found;
  }
  std::uint32_t listed_position(std::uint64_t code, const std::byte* tables) const {
    std::uint32_t low = 0;
    for (auto left = listed; left > 1;) {
      auto half = left / 2;
      if (at<std::uint64_t>(tables, list_at(), low + half) <= code) low += half;
      left -= half;
    }
    return at<std::uint16_t>(tables, listed_at(), low);
  }
};

}  // namespace headrace::index
