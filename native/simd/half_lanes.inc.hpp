// float16 on x86 processors with F16C, a register at a time: gcc does not vectorise its conversions
// to float and back by itself. Compiled once per instruction set, by the kernels that
// include this.
#pragma once

#include <cstddef>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_ISA {
namespace {

#ifdef __F16C__
inline constexpr bool kHalfLanes = true;

#ifdef __AVX512F__
using Halves = __m256i;
using Floats = __m512;
// With a mask of ones: gcc 12 warns of its own header's forms without (PR 105593).
inline Floats widen_lanes(Halves halves) { return _mm512_maskz_cvtph_ps(0xffff, halves); }
inline Halves narrow_lanes(Floats values) {
  return _mm512_maskz_cvtps_ph(0xffff, values, _MM_FROUND_TO_NEAREST_INT);
}
#else
using Halves = __m128i;
using Floats = __m256;
inline Floats widen_lanes(Halves halves) { return _mm256_cvtph_ps(halves); }
inline Halves narrow_lanes(Floats values) {
  return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
}
#endif

// destination[i] = function(a[i], b[i]), in float; the end of the arrays is padded with zeros.
template <class Function>
inline void each_half(void* destination, const void* a, const void* b, std::size_t count,
                      Function function) {
  auto* out = static_cast<char*>(destination);
  auto* left = static_cast<const char*>(a);
  auto* right = static_cast<const char*>(b);
  auto step = [=](std::size_t from, std::size_t size) {
    Halves x{};
    Halves y{};
    std::memcpy(&x, left + from, size);
    std::memcpy(&y, right + from, size);
    x = narrow_lanes(function(widen_lanes(x), widen_lanes(y)));
    std::memcpy(out + from, &x, size);
  };
  std::size_t size = 2 * count;
  std::size_t left_over = size % sizeof(Halves);
  for (std::size_t i = 0; i < size - left_over; i += sizeof(Halves)) step(i, sizeof(Halves));
  if (left_over > 0) step(size - left_over, left_over);
}
#else
inline constexpr bool kHalfLanes = false;
#endif

}  // namespace
}  // namespace headrace::HEADRACE_ISA
