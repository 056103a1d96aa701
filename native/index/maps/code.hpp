// Keys as ordered 64-bit codes: a < b as keys is the same as encode(a) < encode(b).
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <type_traits>

namespace headrace::index {

// Of at most 64 bits: with GNU's extensions __int128 is integral, too.
template <class Key>
concept CodedKey = (std::integral<Key> && sizeof(Key) <= sizeof(std::uint64_t)) ||
                   std::same_as<Key, double> || std::same_as<Key, float>;

namespace detail {
constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
}  // namespace detail

// Throws std::domain_error for NaN, which has no place in an order. -0.0 and 0.0 are one key.
template <CodedKey Key>
constexpr std::uint64_t encode(Key key) {
  if constexpr (std::floating_point<Key>) {
    // By bits alone: in arithmetic a processor may take subnormal numbers for zero, if so set, and
    // a compiler may take none for NaN.
    auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(key));
    if ((bits & ~detail::kSign) > detail::kInfinity) {
      throw std::domain_error("index key: NaN has no order, remove it");
    }
    if (bits == detail::kSign) bits = 0;
    // Magnitudes of negative numbers count downwards.
    return bits & detail::kSign ? ~bits : bits | detail::kSign;
  } else if constexpr (std::is_signed_v<Key>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(key)) ^ detail::kSign;
  } else {
    return key;
  }
}

// The key of a code that `encode<Key>` made.
template <CodedKey Key>
constexpr Key decode(std::uint64_t code) {
  if constexpr (std::floating_point<Key>) {
    const auto bits = code & detail::kSign ? code ^ detail::kSign : ~code;
    return static_cast<Key>(std::bit_cast<double>(bits));
  } else if constexpr (std::is_signed_v<Key>) {
    return static_cast<Key>(static_cast<std::int64_t>(code ^ detail::kSign));
  } else {
    return static_cast<Key>(code);
  }
}

}  // namespace headrace::index
