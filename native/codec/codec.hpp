// Hot loops of gradient codecs: signs, codes of few bits, the largest elements. Payloads are packed
// from the lowest bit of a byte on: element i has the bits from i * bits. Pointers need no
// alignment; results do not depend on the instruction set that is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::codec {

// Bytes of `count` codes of `bits` bits.
constexpr std::size_t packed_bytes(std::size_t count, int bits) {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

// One bit per element: 1 where it is 0 or above, 0 where below or NaN.
void pack_signs(const float* vector, std::size_t count, std::uint8_t* out);
// `scale` where the bit is 1, and its negative elsewhere.
void unpack_signs(const std::uint8_t* bits, float scale, float* out, std::size_t count);
// `bits` is (ranks, bytes), its rows `stride` bytes apart; a bit of the result is 1 where at least
// half of the ranks' are.
void majority(const std::uint8_t* bits, std::size_t ranks, std::size_t stride, std::size_t bytes,
              std::uint8_t* out);

// Codes of 1 to 8 bits, one a byte and without other bits, to a payload and back.
void pack_codes(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* out);
void unpack_codes(const std::uint8_t* packed, std::size_t count, int bits, std::uint8_t* out);

// Rounds each bucket's elements to 2^bits equally spaced values from its minimum to its maximum
// (2 to 8 bits; `bucket` is a multiple of 8, the last one may be shorter). `ranges` gets minimum
// and step of every bucket: both NaN, and its codes 0, where an element is infinite or NaN.
void quantize(const float* vector, std::size_t count, int bits, std::size_t bucket,
              std::uint8_t* codes, float* ranges);
// out = minimum + code * step, or added to it.
void dequantize(const std::uint8_t* codes, const float* ranges, int bits, std::size_t bucket,
                float* out, std::size_t count, bool add);

// float8 e4m3, rounded to nearest, of each bucket's elements over its scale: the largest magnitude
// becomes 448, the type's largest; the scale is no subnormal number.
void encode_float8(const float* vector, std::size_t count, std::size_t bucket, std::uint8_t* codes,
                   float* scales);
// out = code * scale, or added to it.
void decode_float8(const std::uint8_t* codes, const float* scales, std::size_t bucket, float* out,
                   std::size_t count, bool add);

// bfloat16 (`brain`) or float16 of each element, to nearest, ties to even; what is rounded off is
// added to `residual`, nothing where the element or its rounding is not finite.
void round_with_residual(const float* vector, std::size_t count, bool brain, std::uint16_t* rounded,
                         float* residual);

// Levels of each bucket's norm, rounded up or down at random without bias (stochastic rounding, 2
// to 8 bits): of s = 2^(bits-1) - 1 levels an element x has one of the two beside s |x| / norm,
// which is its expectation; its code is s plus or minus the level. `norms` gets every bucket's
// Euclidean norm, or its largest magnitude; it is not finite, and levels are 0, where an element is
// not. Element i is rounded by word i mod 4 of Philox4x32-10 (Salmon et al., 2011, "Parallel Random
// Numbers: As Easy as 1, 2, 3") of this key and counter i / 4: codes are a function of key and
// input, whatever the threads and the calls before.
void encode_levels(const float* vector, std::size_t count, int bits, std::size_t bucket,
                   bool euclidean, std::uint64_t key, std::uint8_t* codes, float* norms);
// out = (code - s) / s * norm, or added to it.
void decode_levels(const std::uint8_t* codes, const float* norms, int bits, std::size_t bucket,
                   float* out, std::size_t count, bool add);

// The `chosen` elements of largest magnitude, by ascending index; of equal ones those of lower
// index. Magnitudes compare by their bits: a NaN is above infinity. count < 2^31, chosen <= count.
void select_topk(const float* vector, std::size_t count, std::size_t chosen, std::int32_t* indices,
                 float* values);

}  // namespace headrace::codec
