// Floating-point numbers by their bits. Compiled once per instruction set, like kernels.inc.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::codec::HEADRACE_ISA {
namespace {

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr std::int32_t kInfinity = 0x7f800000;
constexpr std::int32_t kMagnitude = 0x7fffffff;

// NaN where one is: it is above infinity.
inline float largest_magnitude(const float* vector, std::size_t count) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, vector + i, sizeof bits);
    bits &= kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return float_of(largest);
}

}  // namespace
}  // namespace headrace::codec::HEADRACE_ISA
