// The kernels themselves, compiled once per instruction set (see CMakeLists.txt): each inclusion
// defines HEADRACE_ISA as the namespace it fills. Most loops are plain so that the compiler
// vectorises them for the flags in force. Everything has internal linkage, and no inline function
// of a library is called: of copies for several instruction sets the linker would keep any one.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/bits.inc.hpp"
#include "codec/kernels.hpp"
#include "codec/levels.inc.hpp"
#include "codec/signs.inc.hpp"
#include "codec/topk.inc.hpp"
#include "simd/formats.inc.hpp"
#include "simd/packing.inc.hpp"

namespace headrace::codec::HEADRACE_ISA {
namespace {

using namespace headrace::HEADRACE_ISA;

// With the bits of negative ones turned over, floating-point numbers compare as integers, NaN
// outside of the infinities; its own inverse. Unlike those of float, such minima can be vectorised.
inline std::int32_t ordered(std::int32_t bits) { return bits ^ ((bits >> 31) & kMagnitude); }

struct Range {
  float minimum;
  float step;
};

inline Range range_of(const float* vector, std::size_t count, float levels) {
  std::int32_t low = kMagnitude;
  std::int32_t high = ~kMagnitude;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t key;
    std::memcpy(&key, vector + i, sizeof key);
    key = ordered(key);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  if (high >= kInfinity || low <= ordered(kInfinity | ~kMagnitude)) {
    auto nan = float_of(kInfinity | 0x400000);
    return {nan, nan};
  }
  auto minimum = float_of(ordered(low));
  return {minimum, float_of(ordered(high)) / levels - minimum / levels};
}

template <int kBits>
void quantize_bits(const float* vector, std::size_t count, std::size_t bucket, std::uint8_t* codes,
                   float* ranges) {
  constexpr float kLevels = (1 << kBits) - 1;
  constexpr float kWhole = 1 << 23;  // numbers from here on are whole: the addition rounds
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    auto range = range_of(vector + first, last - first, kLevels);
    std::memcpy(ranges, &range, sizeof range);
    ranges += 2;
    for (std::size_t i = first; i < last; i += kChunk) {
      auto size = last - i < kChunk ? last - i : kChunk;
      alignas(64) std::uint8_t whole[kChunk];
      for (std::size_t j = 0; j < size; ++j) {
        auto scaled = (vector[i + j] - range.minimum) / range.step;
        scaled = scaled > 0 ? scaled : 0;  // NaN, too
        scaled = scaled < kLevels ? scaled : kLevels;
        whole[j] = static_cast<std::uint8_t>(bits_of(scaled + kWhole));
      }
      pack<kBits>(whole, size, codes + i / 8 * kBits);
    }
  }
}

template <int kBits, bool kAdd>
void dequantize_bits(const std::uint8_t* codes, const float* ranges, std::size_t bucket, float* out,
                     std::size_t count) {
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    Range range;
    std::memcpy(&range, ranges, sizeof range);
    ranges += 2;
    for (std::size_t i = first; i < last; i += kChunk) {
      auto size = last - i < kChunk ? last - i : kChunk;
      alignas(64) std::uint8_t whole[kChunk];
      unpack<kBits>(codes + i / 8 * kBits, size, whole);
      for (std::size_t j = 0; j < size; ++j) {
        auto value = static_cast<float>(static_cast<std::int32_t>(whole[j])) * range.step;
        value += range.minimum;
        out[i + j] = kAdd ? out[i + j] + value : value;
      }
    }
  }
}

void quantize(const float* vector, std::size_t count, int bits, std::size_t bucket,
              std::uint8_t* codes, float* ranges) {
  constexpr decltype(&quantize_bits<2>) kByBits[] = {
      quantize_bits<2>, quantize_bits<3>, quantize_bits<4>, quantize_bits<5>,
      quantize_bits<6>, quantize_bits<7>, quantize_bits<8>};
  kByBits[bits - 2](vector, count, bucket, codes, ranges);
}

template <bool kAdd>
void dequantize_table(const std::uint8_t* codes, const float* ranges, int bits, std::size_t bucket,
                      float* out, std::size_t count) {
  constexpr decltype(&dequantize_bits<2, kAdd>) kByBits[] = {
      dequantize_bits<2, kAdd>, dequantize_bits<3, kAdd>, dequantize_bits<4, kAdd>,
      dequantize_bits<5, kAdd>, dequantize_bits<6, kAdd>, dequantize_bits<7, kAdd>,
      dequantize_bits<8, kAdd>};
  kByBits[bits - 2](codes, ranges, bucket, out, count);
}

void dequantize(const std::uint8_t* codes, const float* ranges, int bits, std::size_t bucket,
                float* out, std::size_t count, bool add) {
  (add ? dequantize_table<true> : dequantize_table<false>)(codes, ranges, bits, bucket, out, count);
}

// In chunks; every one but the last begins at a whole byte.
template <int kBits, bool kPack>
void repack(const std::uint8_t* from, std::size_t count, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; i += kChunk) {
    auto size = count - i < kChunk ? count - i : kChunk;
    if constexpr (kPack) {
      pack<kBits>(from + i, size, out + i / 8 * kBits);
    } else {
      unpack<kBits>(from + i / 8 * kBits, size, out + i);
    }
  }
}

template <bool kPack>
void repack_table(const std::uint8_t* from, std::size_t count, int bits, std::uint8_t* out) {
  constexpr decltype(&repack<1, kPack>) kByBits[] = {
      repack<1, kPack>, repack<2, kPack>, repack<3, kPack>, repack<4, kPack>,
      repack<5, kPack>, repack<6, kPack>, repack<7, kPack>, repack<8, kPack>};
  kByBits[bits - 1](from, count, out);
}

constexpr float kFloat8Largest = 448;
constexpr std::int32_t kSmallestNormal = 0x00800000;

void encode_float8(const float* vector, std::size_t count, std::size_t bucket, std::uint8_t* codes,
                   float* scales) {
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    auto scale = largest_magnitude(vector + first, last - first) / kFloat8Largest;
    scale = scale < float_of(kSmallestNormal) ? float_of(kSmallestNormal) : scale;
    *scales++ = scale;
    for (std::size_t i = first; i < last; ++i) {
      codes[i] = headrace::HEADRACE_ISA::narrow<Float8E4M3>(vector[i] / scale).bits;
    }
  }
}

template <bool kAdd>
void decode_float8_to(const std::uint8_t* codes, const float* scales, std::size_t bucket,
                      float* out, std::size_t count) {
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    auto scale = *scales++;
    for (std::size_t i = first; i < last; ++i) {
      auto value = headrace::HEADRACE_ISA::widen(Float8E4M3{codes[i]}) * scale;
      out[i] = kAdd ? out[i] + value : value;
    }
  }
}

void decode_float8(const std::uint8_t* codes, const float* scales, std::size_t bucket, float* out,
                   std::size_t count, bool add) {
  (add ? decode_float8_to<true> : decode_float8_to<false>)(codes, scales, bucket, out, count);
}

template <class T>
void round_to(const float* vector, std::size_t count, std::uint16_t* rounded, float* residual) {
  for (std::size_t i = 0; i < count; ++i) {
    auto result = headrace::HEADRACE_ISA::narrow<T>(vector[i]);
    auto rest = vector[i] - headrace::HEADRACE_ISA::widen(result);
    auto magnitude = static_cast<std::int32_t>(bits_of(rest) & 0x7fffffff);
    rounded[i] = result.bits;
    residual[i] += magnitude < 0x7f800000 ? rest : 0.0F;
  }
}

void round_with_residual(const float* vector, std::size_t count, bool brain, std::uint16_t* rounded,
                         float* residual) {
  (brain ? round_to<BFloat16> : round_to<Float16>)(vector, count, rounded, residual);
}

#define HEADRACE_NAME_OF(name) #name
#define HEADRACE_NAME(name) HEADRACE_NAME_OF(name)

constexpr CodecTable kTable = {HEADRACE_NAME(HEADRACE_ISA),
                               pack_signs,
                               unpack_signs,
                               majority,
                               repack_table<true>,
                               repack_table<false>,
                               quantize,
                               dequantize,
                               select_topk,
                               encode_float8,
                               decode_float8,
                               round_with_residual,
                               encode_levels,
                               decode_levels};

}  // namespace

const CodecTable& codec_kernels() { return kTable; }

}  // namespace headrace::codec::HEADRACE_ISA
