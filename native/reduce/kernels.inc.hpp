// The kernels themselves, compiled once per instruction set (see CMakeLists.txt): each inclusion
// defines HEADRACE_ISA as the namespace it fills. Loops are plain so that the compiler vectorises
// them for the flags in force. Everything has internal linkage, and no inline function of a
// library is called: of copies for several instruction sets the linker would keep any one.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "reduce/kernels.hpp"
#include "simd/formats.inc.hpp"
#include "simd/half_lanes.inc.hpp"

namespace headrace::HEADRACE_ISA {
namespace {

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
struct Min {
  template <class T>
  static bool takes_first(T a, T b) {
    return a < b;
  }
};
struct Max {
  template <class T>
  static bool takes_first(T a, T b) {
    return b < a;
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

template <class Op>
inline constexpr bool kExtreme = std::is_same_v<Op, Min> || std::is_same_v<Op, Max>;
template <class T>
inline constexpr bool kNarrow = std::is_class_v<T>;

// destination[i] = function(a[i], b[i]). Arrays that share memory do so element by element, so that
// no iteration reads what another one has written.
template <class T, class Function>
inline void each(void* destination, const void* a, const void* b, std::size_t count,
                 Function function) {
  auto* out = static_cast<char*>(destination);
  auto* left = static_cast<const char*>(a);
  auto* right = static_cast<const char*>(b);
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) {
    T x;
    T y;
    std::memcpy(&x, left + i * sizeof(T), sizeof(T));
    std::memcpy(&y, right + i * sizeof(T), sizeof(T));
    x = function(x, y);
    std::memcpy(out + i * sizeof(T), &x, sizeof(T));
  }
}

// Minimum and maximum must not depend on the order of their arguments, else ranks could end with
// different bits: a NaN on either side wins (the first of two), and -0 counts as less than +0. On
// the bits of floating-point numbers: with the bits of negative ones turned over they compare as
// integers.
template <class T, class Op>
inline typename Format<T>::Bits extreme(typename Format<T>::Bits a, typename Format<T>::Bits b) {
  using Bits = typename Format<T>::Bits;
  using Signed = std::make_signed_t<Bits>;
  constexpr Signed kMagnitude = std::numeric_limits<Signed>::max();
  auto key = [](Bits bits) {
    auto value = static_cast<Signed>(bits);
    return static_cast<Signed>(value ^ ((value >> (8 * sizeof(Bits) - 1)) & kMagnitude));
  };
  auto is_nan = [](Bits bits) {
    return static_cast<Signed>(bits & kMagnitude) > static_cast<Signed>(Format<T>::kOverflow);
  };
  auto result = Op::takes_first(key(a), key(b)) ? a : b;
  result = is_nan(b) ? static_cast<Bits>(b | Format<T>::kQnanBit) : result;
  return is_nan(a) ? static_cast<Bits>(a | Format<T>::kQnanBit) : result;
}

template <class T, class Op>
inline T combine(T a, T b) {
  if constexpr (kNarrow<T>) {
    return narrow<T>(Op::apply(widen(a), widen(b)));
  } else if constexpr (kExtreme<Op>) {
    return Op::takes_first(a, b) ? a : b;
  } else if constexpr (std::is_integral_v<T>) {
    // Overflow wraps, as in other libraries: computed on unsigned values.
    using Wide = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    return static_cast<T>(Op::apply(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return Op::apply(a, b);
  }
}

// Float8 has so few values that every result is tabulated: a lookup takes as long as the vector
// conversions with AVX-512, and half as long or less without. 64 KiB, made at the first call.
template <class T, class Op>
struct Table {
  std::uint8_t results[256][256];
  Table() {
    for (int a = 0; a < 256; ++a) {
      for (int b = 0; b < 256; ++b) {
        auto x = T{static_cast<std::uint8_t>(a)};
        auto y = T{static_cast<std::uint8_t>(b)};
        results[a][b] = combine<T, Op>(x, y).bits;
      }
    }
  }
};
template <class T, class Op>
inline void reduce_by_table(void* destination, const void* a, const void* b, std::size_t count) {
  static const Table<T, Op> table;
  const auto& results = table.results;
  each<std::uint8_t>(destination, a, b, count,
                     [&results](std::uint8_t x, std::uint8_t y) { return results[x][y]; });
}

template <class T, class Op>
void reduce(void* destination, const void* a, const void* b, std::size_t count) {
  if constexpr (kExtreme<Op> && !std::is_integral_v<T>) {
    using Bits = typename Format<T>::Bits;
    each<Bits>(destination, a, b, count, [](Bits x, Bits y) { return extreme<T, Op>(x, y); });
  } else if constexpr (kNarrow<T> && sizeof(T) == 1) {
    reduce_by_table<T, Op>(destination, a, b, count);
  } else if constexpr (kHalfLanes && std::is_same_v<T, Float16>) {
    each_half(destination, a, b, count, [](auto x, auto y) { return Op::apply(x, y); });
  } else {
    each<T>(destination, a, b, count, [](T x, T y) { return combine<T, Op>(x, y); });
  }
}

// Any non-zero byte is true; sum is or, product is and.
template <class Op>
void reduce_bool(void* destination, const void* a, const void* b, std::size_t count) {
  each<std::uint8_t>(destination, a, b, count, [](std::uint8_t x, std::uint8_t y) {
    return static_cast<std::uint8_t>(Op::apply(x != 0, y != 0));
  });
}

template <class T>
void divide_floating(void* elements, std::size_t count, std::int64_t divisor) {
  if constexpr (!kNarrow<T>) {
    auto by = static_cast<T>(divisor);
    each<T>(elements, elements, elements, count, [by](T x, T) { return x / by; });
  } else {
    auto by = static_cast<float>(divisor);
    if constexpr (kHalfLanes && std::is_same_v<T, Float16>) {
      each_half(elements, elements, elements, count, [by](auto x, auto) { return x / by; });
    } else {
      each<T>(elements, elements, elements, count,
              [by](T x, T) { return narrow<T>(widen(x) / by); });
    }
  }
}

// Processors have no vector division of integers, so this multiplies by the reciprocal, of as many
// bits as T has, rounded down: for n < 2^bits the product falls short of n / divisor by less than
// 1, and its integer part of the quotient by at most 1.
template <class T>
void divide_integers(void* elements, std::size_t count, std::int64_t divisor) {
  using Unsigned = std::make_unsigned_t<T>;
  __extension__ using Widest = unsigned __int128;
  using Wide = std::conditional_t<
      sizeof(T) == 1, std::uint16_t,
      std::conditional_t<sizeof(T) == 2, std::uint32_t,
                         std::conditional_t<sizeof(T) == 4, std::uint64_t, Widest>>>;
  constexpr int kBits = 8 * sizeof(T);
  constexpr std::uint64_t kLargest = std::numeric_limits<Unsigned>::max();
  if (divisor == 1) return;
  if (static_cast<std::uint64_t>(divisor) > kLargest) {
    return each<T>(elements, elements, elements, count, [](T, T) { return T{0}; });
  }
  auto by = static_cast<Unsigned>(divisor);
  auto reciprocal = static_cast<Unsigned>((Widest{1} << kBits) / by);
  each<T>(elements, elements, elements, count, [by, reciprocal](T x, T) {
    bool negative = false;
    if constexpr (std::is_signed_v<T>) negative = x < 0;
    auto magnitude = static_cast<Unsigned>(x);
    magnitude = negative ? static_cast<Unsigned>(-magnitude) : magnitude;
    auto quotient = static_cast<Unsigned>(static_cast<Wide>(magnitude) * reciprocal >> kBits);
    auto rest = static_cast<Unsigned>(magnitude - quotient * by);
    quotient = static_cast<Unsigned>(quotient + (rest >= by ? 1 : 0));
    return static_cast<T>(negative ? -quotient : quotient);
  });
}

void leave(void*, std::size_t, std::int64_t) {}

using Row = std::array<ReduceKernel, kOperators>;

template <class T>
constexpr Row floating() {
  return {reduce<T, Sum>, reduce<T, Product>, reduce<T, Min>, reduce<T, Max>, nullptr, nullptr,
          nullptr};
}
template <class T>
constexpr Row integer() {
  return {reduce<T, Sum>,  reduce<T, Product>, reduce<T, Min>, reduce<T, Max>,
          reduce<T, Band>, reduce<T, Bor>,     reduce<T, Bxor>};
}

#define HEADRACE_NAME_OF(name) #name
#define HEADRACE_NAME(name) HEADRACE_NAME_OF(name)

constexpr KernelTable kTable = {
    HEADRACE_NAME(HEADRACE_ISA),
    {floating<float>(), floating<double>(), floating<Float16>(), floating<BFloat16>(),
     floating<Float8E4M3>(), floating<Float8E5M2>(), integer<std::int8_t>(),
     integer<std::int16_t>(), integer<std::int32_t>(), integer<std::int64_t>(),
     integer<std::uint8_t>(), integer<std::uint16_t>(), integer<std::uint32_t>(),
     integer<std::uint64_t>(),
     Row{reduce_bool<Bor>, reduce_bool<Band>, reduce_bool<Band>, reduce_bool<Bor>,
         reduce_bool<Band>, reduce_bool<Bor>, reduce_bool<Bxor>}},
    {divide_floating<float>, divide_floating<double>, divide_floating<Float16>,
     divide_floating<BFloat16>, divide_floating<Float8E4M3>, divide_floating<Float8E5M2>,
     divide_integers<std::int8_t>, divide_integers<std::int16_t>, divide_integers<std::int32_t>,
     divide_integers<std::int64_t>, divide_integers<std::uint8_t>, divide_integers<std::uint16_t>,
     divide_integers<std::uint32_t>, divide_integers<std::uint64_t>, leave},
};

}  // namespace

const KernelTable& kernels() { return kTable; }

}  // namespace headrace::HEADRACE_ISA
