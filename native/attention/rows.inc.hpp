// Rows of stored numbers, read as vectors of floats, and written. Compiled once per instruction
// set.
#pragma once

#include "attention/attention.hpp"
#include "attention/lanes.inc.hpp"
#include "attention/layout.hpp"
#include "simd/formats.inc.hpp"

namespace headrace::attention::HEADRACE_ISA {
namespace {

using headrace::HEADRACE_ISA::BFloat16;
using headrace::HEADRACE_ISA::bits_of;
using headrace::HEADRACE_ISA::narrow;
using headrace::HEADRACE_ISA::widen;

inline constexpr std::size_t kMostDimensions = 512;

// Rows of one head. `at` gives kLanes numbers of a row; they are read kStep dimensions at a time,
// so that it is known while compiling which half of the bytes has a code of 4 bits. kPaired: not in
// their order, see `PairedRows`.
struct Float32Rows {
  static constexpr bool kCodes = false;
  static constexpr bool kPaired = false;
  static constexpr std::size_t kStep = kDimensions;
  const float* data;
  std::size_t dim;
  std::size_t bytes() const { return 4 * dim; }
  const char* address(std::size_t row) const {
    return reinterpret_cast<const char*>(data) + row * bytes();
  }
  Floats at(std::size_t row, std::size_t d) const { return read<Floats>(data + row * dim + d); }
};
struct BFloat16Rows {
  static constexpr bool kCodes = false;
  static constexpr bool kPaired = false;
  static constexpr std::size_t kStep = kDimensions;
  const std::uint16_t* data;
  std::size_t dim;
  std::size_t bytes() const { return 2 * dim; }
  const char* address(std::size_t row) const {
    return reinterpret_cast<const char*>(data) + row * bytes();
  }
  Floats at(std::size_t row, std::size_t d) const { return widen_bfloat16(data + row * dim + d); }
};
// Of each 2 * kLanes dimensions `at` gives the even ones first, then the odd ones: a shift and a
// mask widen both, where numbers in their order are moved between lanes first, which takes twice as
// long.
struct PairedRows {
  static constexpr bool kCodes = false;
  static constexpr bool kPaired = true;
  static constexpr std::size_t kStep = 2 * kLanes;
  const std::uint16_t* data;
  std::size_t dim;
  std::size_t bytes() const { return 2 * dim; }
  const char* address(std::size_t row) const {
    return reinterpret_cast<const char*>(data) + row * bytes();
  }
  Floats at(std::size_t row, std::size_t d) const {
    auto pairs = read<Words>(data + row * dim + d / kStep * kStep);
    return reinterpret_cast<Floats>(d & kLanes ? pairs & 0xffff0000 : pairs << 16);
  }
};
struct Int8Rows {
  static constexpr bool kCodes = true;
  static constexpr bool kPaired = false;
  static constexpr std::size_t kStep = kDimensions;
  const std::int8_t* data;
  std::size_t dim;
  std::size_t bytes() const { return dim; }
  const char* address(std::size_t row) const {
    return reinterpret_cast<const char*>(data) + row * bytes();
  }
  Floats at(std::size_t row, std::size_t d) const { return widen_int8(data + row * dim + d); }
};
struct Int4Rows {
  static constexpr bool kCodes = true;
  static constexpr bool kPaired = false;
  static constexpr std::size_t kStep = 2 * kDimensions;
  const std::uint8_t* data;
  std::size_t dim;
  std::size_t bytes() const { return dim / 2; }
  const char* address(std::size_t row) const {
    return reinterpret_cast<const char*>(data) + row * bytes();
  }
  Floats at(std::size_t row, std::size_t d) const {
    auto* bytes = data + row * (dim / 2) + d / 32 * 16 + d % 16;
    return d & 16 ? widen_int4<true>(bytes) : widen_int4<false>(bytes);
  }
};
// Rows of codes as whole numbers.
struct Int8Codes : Int8Rows {
  static constexpr std::size_t kStep = kPairLanes;
  Codes at(std::size_t row, std::size_t d) const { return widen_codes(address(row) + d); }
};
struct Int4Codes : Int4Rows {
  Codes at(std::size_t row, std::size_t d) const {
    auto* bytes = address(row) + d / 32 * 16;
#if defined(__AVX512BW__)
    auto both =
        _mm512_maskz_cvtepu8_epi16(0xffffffff, _mm256_broadcastsi128_si256(read<__m128i>(bytes)));
    Codes shifts{};
    for (std::size_t i = kLanes; i < kPairLanes; ++i) shifts[i] = 4;
    return reinterpret_cast<Codes>(both) >> shifts & 15;
#else
    auto codes = widen_codes(bytes + d % 16);  // their signs are masked
    return (d & 16 ? codes >> 4 : codes) & 15;
#endif
  }
};

template <class Function>
inline void with_rows(Format format, const void* data, std::size_t dim, Function function) {
  switch (format) {
    case Format::kFloat32:
      return function(Float32Rows{static_cast<const float*>(data), dim});
    case Format::kBFloat16:
      return function(BFloat16Rows{static_cast<const std::uint16_t*>(data), dim});
    case Format::kInt8:
      return function(Int8Rows{static_cast<const std::int8_t*>(data), dim});
    case Format::kInt4:
    case Format::kInt4Groups:
      return function(Int4Rows{static_cast<const std::uint8_t*>(data), dim});
  }
}

inline bool has_pairs(Format format, std::size_t dim) {
  return format == Format::kBFloat16 && dim % PairedRows::kStep == 0;
}
// As `with_rows`, with numbers of bfloat16 in pairs where `has_pairs`.
template <class Function>
inline void with_paired_rows(Format format, const void* data, std::size_t dim, Function function) {
  if (has_pairs(format, dim)) {
    return function(PairedRows{static_cast<const std::uint16_t*>(data), dim});
  }
  with_rows(format, data, dim, function);
}

// Unit and number of code 0, of bfloat16.
struct Range {
  float unit;
  float zero;
};
inline Range range_at(const void* units, const void* zeros, std::size_t i) {
  BFloat16 unit;
  BFloat16 zero;
  std::memcpy(&unit, static_cast<const char*>(units) + 2 * i, sizeof unit);
  std::memcpy(&zero, static_cast<const char*>(zeros) + 2 * i, sizeof zero);
  return {widen(unit), widen(zero)};
}
// Of a row of kInt4.
inline Range row_range(const void* scales, std::size_t row) {
  auto* range = static_cast<const char*>(scales) + 4 * row;
  return range_at(range, range + 2, 0);
}
inline float row_unit(const void* scales, std::size_t row) {
  float unit;
  std::memcpy(&unit, static_cast<const char*>(scales) + 4 * row, sizeof unit);
  return unit;
}

// Adding it rounds to whole numbers, ties to even.
inline constexpr float kWhole = 12582912.0f;
inline constexpr float kNan = __builtin_nanf("");

inline void read_row(Format format, const void* row, std::size_t dim, float* out) {
  if (format == Format::kFloat32) {
    std::memcpy(out, row, 4 * dim);
  } else {
    for (std::size_t i = 0; i < dim; ++i) {
      BFloat16 number;
      std::memcpy(&number, static_cast<const char*>(row) + 2 * i, sizeof number);
      out[i] = widen(number);
    }
  }
}
inline void write_row(const float* row, std::size_t dim, Format format, void* out) {
  if (format == Format::kFloat32) {
    std::memcpy(out, row, 4 * dim);
  } else {
    for (std::size_t i = 0; i < dim; ++i) {
      auto number = narrow<BFloat16>(row[i]);
      std::memcpy(static_cast<char*>(out) + 2 * i, &number, sizeof number);
    }
  }
}

// The largest magnitude of a row; NaN if there is one in it.
inline float largest_of(const float* row, std::size_t dim) {
  Floats largest{};
  Ints nans{};
  for (std::size_t d = 0; d < dim; d += kLanes) {
    auto part = read<Floats>(row + d);
    auto magnitude = part < 0 ? -part : part;
    largest = magnitude > largest ? magnitude : largest;
    nans |= part != part;
  }
  std::int32_t nan = 0;
  for (std::size_t i = 0; i < kLanes; ++i) nan |= nans[i];
  return nan ? kNan : maximum_of(largest);
}
// Numbers to the nearest multiples of a unit, as kLanes numbers of `Vector`, whose type holds them.
template <class Vector, class Code>
inline void write_codes(const float* row, std::size_t dim, float unit, Code* codes) {
  auto inverse = unit > 0 ? 1 / unit : 0.0f;
  for (std::size_t d = 0; d < dim; d += kLanes) {
    auto rounded = read<Floats>(row + d) * inverse + kWhole;
    auto code = reinterpret_cast<Ints>(rounded) - static_cast<std::int32_t>(bits_of(kWhole));
    auto narrow = __builtin_convertvector(code, Vector);
    std::memcpy(codes + d, &narrow, sizeof narrow);
  }
}
// A unit of NaN keeps a NaN in sight: all of its row is read as NaN.
inline void store_int8(const float* row, std::size_t dim, std::int8_t* codes, float* unit_out) {
  auto unit = largest_of(row, dim) / 127;
  write_codes<SignedBytes>(row, dim, unit, codes);
  std::memcpy(unit_out, &unit, sizeof unit);
}

// The largest bfloat16 that is not above a number.
inline float floor_bfloat16(float number) {
  auto bits = bits_of(number);
  if (bits >> 31 != 0) bits += 0xffff;
  bits &= 0xffff0000;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Of numbers `stride` apart. The number of code 0 is rounded downwards, and the unit is of the
// range from there on: all numbers lie in it. Ranges beyond bfloat16's are read as NaN.
inline Range range_of(const float* numbers, std::size_t count, std::size_t stride) {
  float low = numbers[0];
  float high = numbers[0];
  bool nan = false;
  for (std::size_t i = 0; i < count; ++i) {
    auto number = numbers[i * stride];
    low = number < low ? number : low;
    high = number > high ? number : high;
    nan |= number != number;
  }
  if (nan) return {kNan, kNan};
  auto zero = floor_bfloat16(low);
  return {widen(narrow<BFloat16>(high / 15 - zero / 15)), zero};
}
inline std::uint8_t int4_code(float number, Range range) {
  auto scaled = range.unit > 0 ? (number - range.zero) / range.unit : 0.0f;
  scaled = scaled > 0 ? scaled : 0;  // NaN, too
  scaled = scaled < 15 ? scaled : 15;
  return static_cast<std::uint8_t>(bits_of(scaled + kWhole) - bits_of(kWhole));
}
inline void write_range(Range range, void* units, void* zeros, std::size_t i) {
  auto unit = narrow<BFloat16>(range.unit);
  auto zero = narrow<BFloat16>(range.zero);
  std::memcpy(static_cast<char*>(units) + 2 * i, &unit, sizeof unit);
  std::memcpy(static_cast<char*>(zeros) + 2 * i, &zero, sizeof zero);
}
template <class RangeOf>
inline void store_int4(const float* row, std::size_t dim, std::uint8_t* codes, RangeOf range_of) {
  for (std::size_t d = 0; d < dim; d += 32) {
    for (std::size_t i = d; i < d + 16; ++i) {
      auto high = int4_code(row[i + 16], range_of(i + 16));
      codes[d / 2 + i - d] = static_cast<std::uint8_t>(int4_code(row[i], range_of(i)) | high << 4);
    }
  }
}

void store_group(Format from, const void* source, std::ptrdiff_t token_stride, std::uint8_t* codes,
                 char* scales, std::size_t dim) {
  float rows[kGroup][kMostDimensions];
  auto bytes = static_cast<std::ptrdiff_t>(row_bytes(from, 1)) * token_stride;
  for (std::size_t t = 0; t < kGroup; ++t) {
    auto* row = static_cast<const char*>(source) + bytes * static_cast<std::ptrdiff_t>(t);
    read_row(from, row, dim, rows[t]);
  }
  Range ranges[kMostDimensions];
  for (std::size_t i = 0; i < dim; ++i) {
    ranges[i] = range_of(&rows[0][i], kGroup, kMostDimensions);
    write_range(ranges[i], scales, scales + 2 * dim, i);
  }
  for (std::size_t t = 0; t < kGroup; ++t) {
    store_int4(rows[t], dim, codes + t * (dim / 2), [&](std::size_t i) { return ranges[i]; });
  }
}

void store_rows(Format from, const void* source, std::ptrdiff_t token_stride, Format to, void* data,
                void* scales, std::size_t tokens, std::size_t dim) {
  auto bytes = static_cast<std::ptrdiff_t>(row_bytes(from, 1)) * token_stride;
  auto* in = static_cast<const char*>(source);
  auto* out = static_cast<char*>(data);
  auto* scale = static_cast<char*>(scales);
  if (to == Format::kInt4Groups) {
    for (std::size_t t = 0; t < tokens; t += kGroup) {
      store_group(from, in + bytes * static_cast<std::ptrdiff_t>(t), token_stride,
                  reinterpret_cast<std::uint8_t*>(out) + t * (dim / 2),
                  scale + t / kGroup * (4 * dim), dim);
    }
    return;
  }
  float row[kMostDimensions];
  for (std::size_t t = 0; t < tokens; ++t) {
    auto* codes = out + t * row_bytes(to, dim);
    read_row(from, in + bytes * static_cast<std::ptrdiff_t>(t), dim, row);
    if (to == Format::kInt8) {
      store_int8(row, dim, reinterpret_cast<std::int8_t*>(codes),
                 reinterpret_cast<float*>(scale + 4 * t));
    } else if (to == Format::kInt4) {
      auto range = range_of(row, dim, 1);
      write_range(range, scale + 4 * t, scale + 4 * t + 2, 0);
      store_int4(row, dim, reinterpret_cast<std::uint8_t*>(codes),
                 [&](std::size_t) { return range; });
    } else {
      write_row(row, dim, to, codes);
    }
  }
}

}  // namespace
}  // namespace headrace::attention::HEADRACE_ISA
