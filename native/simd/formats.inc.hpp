// Floating-point formats: parameters of each, and for those narrower than float the conversion to
// float and back in integer arithmetic, branch-free for vectorisation. Compiled once per
// instruction set, by the kernels that include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace::HEADRACE_ISA {
namespace {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float8E4M3 {
  std::uint8_t bits;
};
struct Float8E5M2 {
  std::uint8_t bits;
};

// Bits below are without the sign.
//   kOverflow  result of overflow: infinity where there is one; anything above it is a NaN
//   kFinite    the largest number
//   kNan       a NaN, to which as much of the payload is added as there is room for
//   kQnanBit   quiet bit, set in NaNs that are a minimum or maximum; 0: they stay as they are
template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr Bits kOverflow = 0x7f800000;
  static constexpr Bits kQnanBit = 0;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr Bits kOverflow = 0x7ff0000000000000;
  static constexpr Bits kQnanBit = 0;
};
template <>
struct Format<BFloat16> {
  using Bits = std::uint16_t;
  static constexpr Bits kOverflow = 0x7f80;
  static constexpr Bits kQnanBit = 0x40;
};
template <>
struct Format<Float16> {
  using Bits = std::uint16_t;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static constexpr Bits kFinite = 0x7bff;
  static constexpr Bits kOverflow = 0x7c00;
  static constexpr Bits kNan = 0x7e00;
  static constexpr Bits kQnanBit = 0;
};
template <>
struct Format<Float8E4M3> {
  using Bits = std::uint8_t;
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr Bits kFinite = 0x7e;
  static constexpr Bits kOverflow = kFinite;  // no infinities
  static constexpr Bits kNan = 0x7f;
  static constexpr Bits kQnanBit = 0;
};
template <>
struct Format<Float8E5M2> {
  using Bits = std::uint8_t;
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr Bits kFinite = 0x7b;
  static constexpr Bits kOverflow = 0x7c;
  static constexpr Bits kNan = 0x7f;
  static constexpr Bits kQnanBit = 0;
};

// Not std::bit_cast: a library function's copy compiled for one instruction set could be linked
// into code that runs without it.
inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Position of a format's bits in those of a float.
template <class T>
struct Place {
  static constexpr int kWidth = 8 * sizeof(T);
  static constexpr int kShift = 23 - Format<T>::kMantissaBits;
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format<T>::kBias) << 23;
  static constexpr std::uint32_t kLeastNormal = kRebias + (1u << 23);
};

template <class T>
inline float widen(T value) {
  using In = Place<T>;
  std::uint32_t bits = value.bits;
  auto sign = bits >> (In::kWidth - 1) << 31;
  auto magnitude = static_cast<std::int32_t>(bits & ((1u << (In::kWidth - 1)) - 1));
  auto shifted = static_cast<std::uint32_t>(magnitude) << In::kShift;
  auto normal = shifted + In::kRebias;
  // Read as the mantissa of the smallest normal number, which is then subtracted.
  auto subnormal = bits_of(float_of(shifted + In::kLeastNormal) - float_of(In::kLeastNormal));
  auto result = magnitude < (1 << Format<T>::kMantissaBits) ? subnormal : normal;
  result = magnitude > Format<T>::kFinite ? shifted | 0x7f800000 : result;
  return float_of(result | sign);
}
inline float widen(BFloat16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even.
template <class T>
inline T narrow(float value) {
  using In = Place<T>;
  using F = Format<T>;
  auto bits = bits_of(value);
  auto sign = bits >> 31 << (In::kWidth - 1);
  auto magnitude = bits & 0x7fffffff;
  constexpr auto kBelowHalf = (1u << (In::kShift - 1)) - 1;
  auto odd = magnitude >> In::kShift & 1;
  auto normal =
      static_cast<std::int32_t>((magnitude - In::kRebias + kBelowHalf + odd) >> In::kShift);
  normal = normal < F::kOverflow ? normal : F::kOverflow;
  // Addition rounds if the other operand's last place is that of the format's subnormal numbers.
  constexpr auto kRounder = In::kRebias + (static_cast<std::uint32_t>(In::kShift + 1) << 23);
  auto subnormal =
      static_cast<std::int32_t>(bits_of(float_of(magnitude) + float_of(kRounder)) - kRounder);
  auto nan = static_cast<std::int32_t>(F::kNan |
                                       (magnitude >> In::kShift & ((1u << F::kMantissaBits) - 1)));
  auto compared = static_cast<std::int32_t>(magnitude);
  auto result = compared < static_cast<std::int32_t>(In::kLeastNormal) ? subnormal : normal;
  result = compared > 0x7f800000 ? nan : result;
  return {static_cast<typename F::Bits>(static_cast<std::uint32_t>(result) | sign)};
}
template <>
inline BFloat16 narrow<BFloat16>(float value) {
  auto bits = bits_of(value);
  auto rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  auto qnan = bits >> 16 | Format<BFloat16>::kQnanBit;
  bool is_nan = static_cast<std::int32_t>(bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? qnan : rounded)};
}

#ifdef __aarch64__
// The processor's conversions, which the compiler vectorises.
inline float widen(Float16 value) {
  _Float16 half;
  std::memcpy(&half, &value, sizeof half);
  return static_cast<float>(half);
}
template <>
inline Float16 narrow<Float16>(float value) {
  auto half = static_cast<_Float16>(value);
  Float16 result;
  std::memcpy(&result, &half, sizeof half);
  return result;
}
#endif

}  // namespace
}  // namespace headrace::HEADRACE_ISA
