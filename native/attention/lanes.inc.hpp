// Vectors of floats as wide as the instruction set's, conversions of stored numbers to them, sums
// over them, and the exponential function. Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace headrace::attention::HEADRACE_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr std::size_t kLanes = 16;
inline constexpr std::size_t kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr std::size_t kLanes = 8;
inline constexpr std::size_t kRegisters = 16;
#else
inline constexpr std::size_t kLanes = 4;
inline constexpr std::size_t kRegisters = 16;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Shorts __attribute__((vector_size(2 * kLanes)));
typedef std::int8_t SignedBytes __attribute__((vector_size(kLanes)));
typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
// Whole numbers of 16 bits, two for each lane of the sums of their products.
inline constexpr std::size_t kPairLanes = 2 * kLanes;
typedef std::int16_t Codes __attribute__((vector_size(2 * kPairLanes)));

template <class Vector>
inline Vector read(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}
inline void write(float* to, Floats vector) { std::memcpy(to, &vector, sizeof vector); }
// Not `Floats{} + value`: of a negative zero that is another number, so that the sum is computed.
inline Floats all(float value) { return value - Floats{}; }

inline Floats widen_bfloat16(const void* from) {
  return reinterpret_cast<Floats>(__builtin_convertvector(read<Shorts>(from), Words) << 16);
}
// gcc 12 makes a dozen instructions of these two conversions, which processors have as one; it
// warns of its own header's forms without a mask (PR 105593).
inline Ints widen_signed(const void* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_maskz_cvtepi8_epi32(0xffff, read<__m128i>(from)));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(read<SignedBytes>(from), Ints);
#endif
}
inline Ints widen_unsigned(const void* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_maskz_cvtepu8_epi32(0xffff, read<__m128i>(from)));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
#else
  return __builtin_convertvector(read<Bytes>(from), Ints);
#endif
}
inline Floats widen_int8(const void* from) {
  return __builtin_convertvector(widen_signed(from), Floats);
}
// kPairLanes signed numbers of 8 bits.
inline Codes widen_codes(const void* from) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Codes>(_mm512_maskz_cvtepi8_epi16(0xffffffff, read<__m256i>(from)));
#elif defined(__AVX2__)
  return reinterpret_cast<Codes>(_mm256_cvtepi8_epi16(read<__m128i>(from)));
#else
  typedef std::int8_t Numbers __attribute__((vector_size(kPairLanes)));
  return __builtin_convertvector(read<Numbers>(from), Codes);
#endif
}
// The low or the high halves of bytes.
template <bool kHigh>
inline Floats widen_int4(const void* from) {
  auto bytes = widen_unsigned(from);
  return __builtin_convertvector(kHigh ? bytes >> 4 : bytes & 15, Floats);
}

inline Floats add_products(Floats sums, Floats a, Floats b) { return sums + a * b; }
// To each lane the products of two pairs.
inline Ints add_products(Ints sums, Codes a, Codes b) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<Ints>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX512BW__)
  return sums + reinterpret_cast<Ints>(
                    _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return sums + reinterpret_cast<Ints>(
                    _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return sums + reinterpret_cast<Ints>(
                    _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  auto low = reinterpret_cast<Ints>(a);
  auto high = reinterpret_cast<Ints>(b);
  return sums + (low << 16 >> 16) * (high << 16 >> 16) + (low >> 16) * (high >> 16);
#endif
}
// What is added up, a vector at a time, and its sums.
template <class Number>
struct Vectors;
template <>
struct Vectors<float> {
  using Numbers = Floats;
  using Sums = Floats;
};
template <>
struct Vectors<std::int16_t> {
  using Numbers = Codes;
  using Sums = Ints;
};

inline float maximum_of(Floats vector) {
  float result = vector[0];
  for (std::size_t i = 1; i < kLanes; ++i) result = vector[i] > result ? vector[i] : result;
  return result;
}
inline float sum_of(Floats vector) {
  float result = 0;
  for (std::size_t i = 0; i < kLanes; ++i) result += vector[i];
  return result;
}

// Lane i of the two vectors' pairwise sums: of each 2 * kWidth lanes, the lower half is a's, the
// upper half b's, and each lane is added to the one kWidth away.
template <std::size_t kWidth, class Vector>
inline Vector fold(Vector a, Vector b) {
  Ints own{};  // a choice between lanes of the same place, which is faster than a move
  Ints away{};
  for (std::size_t i = 0; i < kLanes; ++i) {
    auto second = (i & kWidth) != 0;
    own[i] = static_cast<std::int32_t>(second ? i + kLanes : i);
    away[i] = static_cast<std::int32_t>(second ? i + kLanes - kWidth : i + kWidth);
  }
  return __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, away);
}
// Lane i is the sum over vectors[i], which are overwritten.
template <std::size_t kWidth = kLanes / 2, class Vector>
inline Vector sums_of(Vector* vectors) {
  for (std::size_t i = 0; i < kWidth; ++i) {
    vectors[i] = fold<kWidth>(vectors[i], vectors[i + kWidth]);
  }
  if constexpr (kWidth > 1) {
    return sums_of<kWidth / 2>(vectors);
  } else {
    return vectors[0];
  }
}

// Two vectors of consecutive numbers to those of even places and those of odd ones, and back.
inline void split_pairs(Floats& first, Floats& second) {
  Ints even{};
  for (std::size_t i = 0; i < kLanes; ++i) even[i] = static_cast<std::int32_t>(2 * i);
  auto numbers = first;
  first = __builtin_shuffle(numbers, second, even);
  second = __builtin_shuffle(numbers, second, even + 1);
}
inline void join_pairs(Floats& even, Floats& odd) {
  Ints places{};
  for (std::size_t i = 0; i < kLanes; ++i) {
    places[i] = static_cast<std::int32_t>(i / 2 + (i % 2) * kLanes);
  }
  auto numbers = even;
  even = __builtin_shuffle(numbers, odd, places);
  odd = __builtin_shuffle(numbers, odd, places + static_cast<std::int32_t>(kLanes / 2));
}

// e^x for x <= 0, to two units in the last place: 2^n times a polynomial of degree 7, that of
// Cephes' expf; 0 below the logarithm of the smallest normal number; NaN for NaN.
inline Floats exponential(Floats x) {
  constexpr float kLeast = -87.33654f;
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  auto biased = x * 1.44269504f + kWhole;
  auto n = biased - kWhole;
  auto r = x - n * 0.693359375f + n * 2.12194440e-4f;
  auto p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  auto power = reinterpret_cast<Floats>((reinterpret_cast<Ints>(biased) + 127) << 23);
  return x < kLeast ? Floats{} : p * power;
}

}  // namespace
}  // namespace headrace::attention::HEADRACE_ISA
