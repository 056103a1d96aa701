// Reference results of the kernels, one element at a time and by other means: narrow formats by
// their definition, integers in plain C++. For tests.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "reduce/reduce.hpp"

namespace headrace::reference {

// Elements are handled as their bits, in the low end of 64.
using Bits = std::uint64_t;

struct Expected {
  Bits bits;
  bool any_nan;  // any NaN is right: the processor chooses payload and sign
  bool operator==(const Expected&) const = default;
};

template <class T>
T value_of(Bits bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
Bits bits_of(T value) {
  Bits bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// A format of sign, exponent and mantissa, narrower than float. Bits are without the sign.
struct Format {
  Bits sign;
  int mantissa;  // bits
  int bias;
  Bits overflow;  // result of overflow; above it are the NaNs
  Bits infinity;  // or a value that no number has
  Bits nan;       // what a NaN becomes, with as much of its payload as there is room for
  Bits qnan_bit;  // set in NaNs that are a minimum or maximum

  bool is_nan(Bits bits) const { return (bits & ~sign) > overflow; }

  float widen(Bits bits) const {
    auto magnitude = bits & ~sign;
    auto fraction = magnitude & ((1u << mantissa) - 1);
    auto exponent = static_cast<int>(magnitude >> mantissa);
    float value;
    if (is_nan(bits)) {
      value = value_of<float>(0x7fc00000 | (fraction << (23 - mantissa)));
    } else if (magnitude == infinity) {
      value = std::numeric_limits<float>::infinity();
    } else {
      auto whole = exponent == 0 ? fraction : fraction + (1u << mantissa);
      value = std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - mantissa);
    }
    return (bits & sign) != 0 ? -value : value;
  }

  Bits narrow(float value) const {
    auto minus = std::signbit(value) ? sign : 0;
    if (std::isnan(value)) {
      auto payload = (bits_of(value) & 0x7fffff) >> (23 - mantissa);
      return minus | nan | payload;
    }
    int exponent = value == 0 ? 1 - bias : std::max(1 - bias, std::ilogb(value));
    if (exponent > bias + 1) return minus | overflow;  // so large that the next lines overflow
    // Round to a multiple of the last place; a carry into the exponent is right as it is.
    auto multiple = std::nearbyint(std::ldexp(std::abs(double{value}), mantissa - exponent));
    auto rounded =
        static_cast<Bits>(multiple) + (static_cast<Bits>(exponent + bias - 1) << mantissa);
    return minus | std::min(rounded, overflow);
  }
};

inline constexpr Format kFloat16 = {0x8000, 10, 15, 0x7c00, 0x7c00, 0x7e00, 0};
inline constexpr Format kBFloat16 = {0x8000, 7, 127, 0x7f80, 0x7f80, 0x7fc0, 0x40};
inline constexpr Format kFloat8E4M3 = {0x80, 3, 7, 0x7e, 0xff, 0x7f, 0};
inline constexpr Format kFloat8E5M2 = {0x80, 2, 15, 0x7c, 0x7c, 0x7f, 0};

// For two operands that are not NaN.
template <class T>
T combined(Operator op, T a, T b) {
  switch (op) {
    case Operator::kSum:
      return a + b;
    case Operator::kProduct:
      return a * b;
    case Operator::kMin:
      return a < b || (a == b && std::signbit(a)) ? a : b;
    default:
      return b < a || (a == b && std::signbit(b)) ? a : b;
  }
}

template <class T>
Expected reduce_float(Operator op, Bits a, Bits b) {
  auto x = value_of<T>(a);
  auto y = value_of<T>(b);
  if (op == Operator::kMin || op == Operator::kMax) {
    if (std::isnan(x)) return {a, false};
    if (std::isnan(y)) return {b, false};
  }
  auto result = combined(op, x, y);
  return {bits_of(result), std::isnan(result) && std::isnan(x) == std::isnan(y)};
}

inline Expected reduce_narrow(const Format& format, Operator op, Bits a, Bits b) {
  bool nan_a = format.is_nan(a);
  bool nan_b = format.is_nan(b);
  if (op == Operator::kMin || op == Operator::kMax) {
    if (nan_a) return {a | format.qnan_bit, false};
    if (nan_b) return {b | format.qnan_bit, false};
  }
  auto result = combined(op, format.widen(a), format.widen(b));
  return {format.narrow(result), std::isnan(result) && nan_a == nan_b};
}

template <class T>
Expected reduce_integer(Operator op, Bits a, Bits b) {
  auto x = value_of<T>(a);
  auto y = value_of<T>(b);
  switch (op) {
    case Operator::kSum:
      return {bits_of(static_cast<T>(a + b)), false};
    case Operator::kProduct:
      return {bits_of(static_cast<T>(a * b)), false};
    case Operator::kMin:
      return {bits_of(std::min(x, y)), false};
    case Operator::kMax:
      return {bits_of(std::max(x, y)), false};
    case Operator::kBand:
      return {a & b, false};
    case Operator::kBor:
      return {a | b, false};
    case Operator::kBxor:
      return {a ^ b, false};
  }
  __builtin_unreachable();
}

inline Expected reduce_bool(Operator op, bool a, bool b) {
  switch (op) {
    case Operator::kSum:
    case Operator::kMax:
    case Operator::kBor:
      return {a || b, false};
    case Operator::kProduct:
    case Operator::kMin:
    case Operator::kBand:
      return {a && b, false};
    case Operator::kBxor:
      return {a != b, false};
  }
  __builtin_unreachable();
}

// Calls `visit` with the type's format, or with a number of its C++ type, or with a bool.
template <class Visitor>
Expected with_type(DataType type, Visitor visit) {
  switch (type) {
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kFloat64:
      return visit(double{});
    case DataType::kFloat16:
      return visit(kFloat16);
    case DataType::kBFloat16:
      return visit(kBFloat16);
    case DataType::kFloat8E4M3:
      return visit(kFloat8E4M3);
    case DataType::kFloat8E5M2:
      return visit(kFloat8E5M2);
    case DataType::kInt8:
      return visit(std::int8_t{});
    case DataType::kInt16:
      return visit(std::int16_t{});
    case DataType::kInt32:
      return visit(std::int32_t{});
    case DataType::kInt64:
      return visit(std::int64_t{});
    case DataType::kUInt8:
      return visit(std::uint8_t{});
    case DataType::kUInt16:
      return visit(std::uint16_t{});
    case DataType::kUInt32:
      return visit(std::uint32_t{});
    case DataType::kUInt64:
      return visit(std::uint64_t{});
    case DataType::kBool:
      return visit(bool{});
  }
  __builtin_unreachable();
}

inline Expected reduce(DataType type, Operator op, Bits a, Bits b) {
  return with_type(type, [&](auto of) {
    using T = decltype(of);
    if constexpr (std::is_same_v<T, Format>) {
      return reduce_narrow(of, op, a, b);
    } else if constexpr (std::is_floating_point_v<T>) {
      return reduce_float<T>(op, a, b);
    } else if constexpr (std::is_same_v<T, bool>) {
      return reduce_bool(op, a != 0, b != 0);
    } else {
      return reduce_integer<T>(op, a, b);
    }
  });
}

inline Expected divide(DataType type, Bits a, std::int64_t divisor) {
  return with_type(type, [&](auto of) -> Expected {
    using T = decltype(of);
    if constexpr (std::is_same_v<T, Format>) {
      return {of.narrow(of.widen(a) / static_cast<float>(divisor)), false};
    } else if constexpr (std::is_floating_point_v<T>) {
      return {bits_of(value_of<T>(a) / static_cast<T>(divisor)), false};
    } else if constexpr (std::is_same_v<T, bool>) {
      return {a, false};
    } else if constexpr (std::is_signed_v<T>) {
      return {bits_of(static_cast<T>(value_of<T>(a) / divisor)), false};
    } else {
      return {bits_of(static_cast<T>(a / static_cast<Bits>(divisor))), false};
    }
  });
}

inline bool is_nan(DataType type, Bits bits) {
  auto found = with_type(type, [&](auto of) -> Expected {
    using T = decltype(of);
    if constexpr (std::is_same_v<T, Format>) {
      return {0, of.is_nan(bits)};
    } else if constexpr (std::is_floating_point_v<T>) {
      return {0, std::isnan(value_of<T>(bits))};
    } else {
      return {0, false};
    }
  });
  return found.any_nan;
}

}  // namespace headrace::reference
