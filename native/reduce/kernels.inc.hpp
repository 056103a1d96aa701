// The kernels themselves, compiled once per instruction set (see CMakeLists.txt): each inclusion
// defines HEADRACE_ISA as the namespace it fills. Loops are plain so that the compiler vectorises
// them for the flags in force.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce/kernels.hpp"
#include "reduce/reduce.hpp"

namespace headrace::HEADRACE_ISA {
namespace {

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

inline float widen(BFloat value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline BFloat narrow_bfloat(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  auto quiet_nan = (bits >> 16) | 0x40;
  bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}
inline float widen(Half value) { return static_cast<float>(std::bit_cast<_Float16>(value.bits)); }
inline Half narrow_half(float value) {
  return {std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))};
}

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
};
// Minimum and maximum must not depend on the order of their arguments, else ranks could end with
// different bits: a NaN on either side wins, and -0 counts as less than +0.
template <class T>
inline T select(T a, T b, bool first) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a) return a;
    if (b != b) return b;
  }
  return first ? a : b;
}
template <class T>
inline bool below(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a < b || (a == b && std::signbit(a));
  } else {
    return a < b;
  }
}
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return select(a, b, below(a, b));
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return select(a, b, below(b, a));
  }
};
struct Band {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <class T, class Op>
inline T combine(T a, T b) {
  if constexpr (std::is_same_v<T, BFloat>) {
    return narrow_bfloat(Op::apply(widen(a), widen(b)));
  } else if constexpr (std::is_same_v<T, Half>) {
    return narrow_half(Op::apply(widen(a), widen(b)));
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T> &&
                       (std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>)) {
    // Signed overflow wraps, as users of other libraries expect: work on unsigned values.
    using Wide = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    return static_cast<T>(Op::apply(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return Op::apply(a, b);
  }
}

template <class T, class Op>
void reduce(void* destination, const void* source, std::size_t count) {
  auto* out = static_cast<char*>(destination);
  auto* in = static_cast<const char*>(source);
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, out + i * sizeof(T), sizeof(T));
    std::memcpy(&b, in + i * sizeof(T), sizeof(T));
    a = combine<T, Op>(a, b);
    std::memcpy(out + i * sizeof(T), &a, sizeof(T));
  }
}

// Any non-zero byte is true; sum is or, product is and.
template <class Op>
void reduce_bool(void* destination, const void* source, std::size_t count) {
  auto* out = static_cast<std::uint8_t*>(destination);
  auto* in = static_cast<const std::uint8_t*>(source);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint8_t>(Op::apply(out[i] != 0, in[i] != 0));
  }
}

template <class T>
constexpr KernelRow arithmetic_row() {
  return {reduce<T, Sum>, reduce<T, Product>, reduce<T, Min>, reduce<T, Max>, nullptr, nullptr,
          nullptr};
}
template <class T>
constexpr KernelRow integer_row() {
  return {reduce<T, Sum>,  reduce<T, Product>, reduce<T, Min>, reduce<T, Max>,
          reduce<T, Band>, reduce<T, Bor>,     reduce<T, Bxor>};
}

}  // namespace

const KernelTable& kernels() {
  static constexpr KernelTable table = {
      arithmetic_row<float>(),
      arithmetic_row<double>(),
      arithmetic_row<Half>(),
      arithmetic_row<BFloat>(),
      integer_row<std::int8_t>(),
      integer_row<std::uint8_t>(),
      integer_row<std::int16_t>(),
      integer_row<std::int32_t>(),
      integer_row<std::int64_t>(),
      KernelRow{reduce_bool<Bor>, reduce_bool<Band>, reduce_bool<Band>, reduce_bool<Bor>,
                reduce_bool<Band>, reduce_bool<Bor>, reduce_bool<Bxor>},
  };
  return table;
}

}  // namespace headrace::HEADRACE_ISA
