// SplitMix64's output function (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", 2014): a bijection of 64-bit numbers whose results look random.
#pragma once

#include <cstdint>

namespace headrace::embedding {

// Successive states of SplitMix64 differ by it: 2^64 over the golden ratio.
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15U;

inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace headrace::embedding
