// Codes of 1 to 8 bits, one a byte, to packed ones and back: eight are a word of 64 bits, which is
// squeezed in three steps. Compiled once per instruction set, by the kernels that include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::HEADRACE_ISA {
namespace {

// `width` bits at the low end of every `lane` bits of a word.
constexpr std::uint64_t lanes(int width, int lane) {
  auto ones = ~std::uint64_t{0} >> (64 - width);
  std::uint64_t mask = 0;
  for (int at = 0; at < 64; at += lane) mask |= ones << at;
  return mask;
}

// Joins two neighbouring fields of kWidth bits, which begin kLane bits apart.
template <int kWidth, int kLane>
inline std::uint64_t join(std::uint64_t word) {
  auto low = word & lanes(kWidth, 2 * kLane);
  return low | (word >> (kLane - kWidth) & lanes(kWidth, 2 * kLane) << kWidth);
}
template <int kWidth, int kLane>
inline std::uint64_t part(std::uint64_t word) {
  auto low = word & lanes(kWidth, 2 * kLane);
  return low | ((word & lanes(kWidth, 2 * kLane) << kWidth) << (kLane - kWidth));
}

template <int kBits>
inline std::uint64_t squeeze(std::uint64_t word) {
  return join<4 * kBits, 32>(join<2 * kBits, 16>(join<kBits, 8>(word)));
}
template <int kBits>
inline std::uint64_t spread(std::uint64_t word) {
  return part<kBits, 8>(part<2 * kBits, 16>(part<4 * kBits, 32>(word)));
}

inline std::uint64_t load_bytes(const std::uint8_t* from, std::size_t bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, bytes);
  return word;
}

template <int kBits>
struct GroupOf {
  static constexpr bool kWhole = false;
};
template <>
struct GroupOf<1> {
  static constexpr bool kWhole = true;
  using Type = std::uint8_t;
};
template <>
struct GroupOf<2> {
  static constexpr bool kWhole = true;
  using Type = std::uint16_t;
};
template <>
struct GroupOf<4> {
  static constexpr bool kWhole = true;
  using Type = std::uint32_t;
};

// Codes are handled so many at a time, a byte each.
constexpr std::size_t kChunk = 512;
constexpr std::size_t kMostGroups = kChunk / 8;

// Packs groups * 8 codes.
template <int kBits>
inline void pack_groups(const std::uint8_t* codes, std::size_t groups, std::uint8_t* out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, codes, groups * 8);
  } else if constexpr (GroupOf<kBits>::kWhole) {
    for (std::size_t i = 0; i < groups; ++i) {
      auto packed =
          static_cast<typename GroupOf<kBits>::Type>(squeeze<kBits>(load_bytes(codes + 8 * i, 8)));
      std::memcpy(out + kBits * i, &packed, kBits);
    }
  } else {
    // Stores of eight bytes, of which the next one overwrites the end: a loop of its own, as only
    // the squeezing can be vectorised.
    std::uint64_t words[kMostGroups];
    for (std::size_t i = 0; i < groups; ++i) {
      words[i] = squeeze<kBits>(load_bytes(codes + 8 * i, 8));
    }
    std::size_t i = 0;
    for (; kBits * i + 8 <= kBits * groups; ++i) std::memcpy(out + kBits * i, &words[i], 8);
    for (; i < groups; ++i) std::memcpy(out + kBits * i, &words[i], kBits);
  }
}

template <int kBits>
inline void pack(const std::uint8_t* codes, std::size_t count, std::uint8_t* out) {
  auto groups = count / 8;
  pack_groups<kBits>(codes, groups, out);
  if (auto rest = count % 8; rest > 0) {
    auto packed = squeeze<kBits>(load_bytes(codes + 8 * groups, rest));
    std::memcpy(out + kBits * groups, &packed, (rest * kBits + 7) / 8);
  }
}

template <int kBits>
inline void unpack_groups(const std::uint8_t* packed, std::size_t groups, std::uint8_t* out) {
  if constexpr (kBits == 8) {
    std::memcpy(out, packed, groups * 8);
  } else if constexpr (GroupOf<kBits>::kWhole) {
    for (std::size_t i = 0; i < groups; ++i) {
      typename GroupOf<kBits>::Type group;
      std::memcpy(&group, packed + kBits * i, kBits);
      auto codes = spread<kBits>(group);
      std::memcpy(out + 8 * i, &codes, 8);
    }
  } else {
    std::uint64_t words[kMostGroups];
    std::size_t i = 0;
    for (; kBits * i + 8 <= kBits * groups; ++i) words[i] = load_bytes(packed + kBits * i, 8);
    for (; i < groups; ++i) words[i] = load_bytes(packed + kBits * i, kBits);
    for (i = 0; i < groups; ++i) {
      auto codes = spread<kBits>(words[i]);
      std::memcpy(out + 8 * i, &codes, 8);
    }
  }
}

template <int kBits>
inline void unpack(const std::uint8_t* packed, std::size_t count, std::uint8_t* out) {
  auto groups = count / 8;
  unpack_groups<kBits>(packed, groups, out);
  if (auto rest = count % 8; rest > 0) {
    auto codes = spread<kBits>(load_bytes(packed + kBits * groups, (rest * kBits + 7) / 8));
    std::memcpy(out + 8 * groups, &codes, rest);
  }
}

}  // namespace
}  // namespace headrace::HEADRACE_ISA
