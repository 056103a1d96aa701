// Stochastic rounding to levels of a bucket's norm, with counter-based random numbers. Compiled
// once per instruction set, like kernels.inc.hpp.
#include <cstddef>
#include <cstdint>

#include "codec/bits.inc.hpp"
#include "simd/packing.inc.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace headrace::codec::HEADRACE_ISA {
namespace {

using namespace headrace::HEADRACE_ISA;

constexpr int kPhiloxRounds = 10;
constexpr std::size_t kWords = 4;  // of a counter's random numbers, 32 bits each
constexpr std::uint32_t kEvenFactor = 0xd2511f53;
constexpr std::uint32_t kOddFactor = 0xcd9e8d57;
constexpr std::uint32_t kLowStep = 0x9e3779b9;
constexpr std::uint32_t kHighStep = 0xbb67ae85;

#ifdef __AVX2__
// A vector of words, each the lower half of 64 bits: multiplication ignores the upper half, which
// need not be 0.
#ifdef __AVX512F__
using Lanes = __m512i;
constexpr __mmask8 kAll = 0xff;  // gcc 12 warns of uninitialized values without a mask
inline Lanes lanes_of(std::uint64_t value) {
  return _mm512_set1_epi64(static_cast<std::int64_t>(value));
}
inline Lanes counted(std::uint64_t first) {
  return _mm512_add_epi64(lanes_of(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Lanes times(Lanes a, Lanes b) { return _mm512_maskz_mul_epu32(kAll, a, b); }
inline Lanes upper(Lanes a) { return _mm512_maskz_srli_epi64(kAll, a, 32); }
inline Lanes differ(Lanes a, Lanes b, Lanes c) {
  return _mm512_xor_si512(_mm512_xor_si512(a, b), c);
}
inline Lanes pairs(Lanes low, Lanes high) {
  return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_maskz_slli_epi64(kAll, high, 32));
}
inline void store_words(Lanes first, Lanes second, std::uint32_t* out) {
  auto begin = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  auto end = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(first, begin, second));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(first, end, second));
}
#else
using Lanes = __m256i;
inline Lanes lanes_of(std::uint64_t value) {
  return _mm256_set1_epi64x(static_cast<std::int64_t>(value));
}
inline Lanes counted(std::uint64_t first) {
  return _mm256_add_epi64(lanes_of(first), _mm256_setr_epi64x(0, 1, 2, 3));
}
inline Lanes times(Lanes a, Lanes b) { return _mm256_mul_epu32(a, b); }
inline Lanes upper(Lanes a) { return _mm256_srli_epi64(a, 32); }
inline Lanes differ(Lanes a, Lanes b, Lanes c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
inline Lanes pairs(Lanes low, Lanes high) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
}
inline void store_words(Lanes first, Lanes second, std::uint32_t* out) {
  auto even = _mm256_unpacklo_epi64(first, second);
  auto odd = _mm256_unpackhi_epi64(first, second);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}
#endif

// The words of the counters from `counter` on, in the order of the elements.
inline void philox(std::uint64_t key, std::uint64_t counter, std::uint32_t (&words)[kChunk]) {
  constexpr std::size_t kCounters = sizeof(Lanes) / 8;
  for (std::size_t i = 0; i < kChunk; i += kWords * kCounters) {
    auto low = static_cast<std::uint32_t>(key);
    auto high = static_cast<std::uint32_t>(key >> 32);
    auto word0 = counted(counter + i / kWords);
    auto word1 = upper(word0);
    auto word2 = lanes_of(0);
    auto word3 = lanes_of(0);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      auto even = times(word0, lanes_of(kEvenFactor));
      auto odd = times(word2, lanes_of(kOddFactor));
      word0 = differ(upper(odd), word1, lanes_of(low));
      word1 = odd;
      word2 = differ(upper(even), word3, lanes_of(high));
      word3 = even;
      low += kLowStep;
      high += kHighStep;
    }
    store_words(pairs(word0, word1), pairs(word2, word3), words + i);
  }
}
#else
inline void philox(std::uint64_t key, std::uint64_t counter, std::uint32_t (&words)[kChunk]) {
  for (std::size_t i = 0; i < kChunk; i += kWords) {
    auto low = static_cast<std::uint32_t>(key);
    auto high = static_cast<std::uint32_t>(key >> 32);
    auto word0 = static_cast<std::uint32_t>(counter + i / kWords);
    auto word1 = static_cast<std::uint32_t>((counter + i / kWords) >> 32);
    std::uint32_t word2 = 0;
    std::uint32_t word3 = 0;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      auto even = std::uint64_t{kEvenFactor} * word0;
      auto odd = std::uint64_t{kOddFactor} * word2;
      word0 = static_cast<std::uint32_t>(odd >> 32) ^ word1 ^ low;
      word1 = static_cast<std::uint32_t>(odd);
      word2 = static_cast<std::uint32_t>(even >> 32) ^ word3 ^ high;
      word3 = static_cast<std::uint32_t>(even);
      low += kLowStep;
      high += kHighStep;
    }
    words[i] = word0;
    words[i + 1] = word1;
    words[i + 2] = word2;
    words[i + 3] = word3;
  }
}
#endif

inline float magnitude_share(float value, float largest) {
  auto share = value / largest;
  share = share < 0 ? -share : share;
  return share > 0 ? share : 0;  // 0 / 0, and NaN
}

// The Euclidean norm over the largest magnitude, at least 1. Squares of shares neither overflow nor
// vanish; sums of double make the order of the elements matter too little to change a float.
inline float relative_length(const float* vector, std::size_t count, float largest) {
  constexpr std::size_t kSums = 16;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) {
      double share = magnitude_share(vector[i + j], largest);
      sums[j] += share * share;
    }
  }
  for (; i < count; ++i) {
    double share = magnitude_share(vector[i], largest);
    sums[i % kSums] += share * share;
  }
  double total = 0;
  for (auto sum : sums) total += sum;
  auto length = static_cast<float>(__builtin_sqrt(total));
  return length > 1 ? length : 1;
}

template <int kBits>
void encode_levels_bits(const float* vector, std::size_t count, std::size_t bucket, bool euclidean,
                        std::uint64_t key, std::uint8_t* codes, float* norms) {
  constexpr std::int32_t kLevels = (1 << (kBits - 1)) - 1;
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    auto largest = largest_magnitude(vector + first, last - first);
    auto length = euclidean ? relative_length(vector + first, last - first, largest) : 1;
    *norms++ = largest * length;
    for (std::size_t i = first; i < last; i += kChunk) {
      auto size = last - i < kChunk ? last - i : kChunk;
      alignas(64) std::uint32_t random[kChunk];
      alignas(64) std::uint8_t whole[kChunk];
      philox(key, i / kWords, random);
      for (std::size_t j = 0; j < size; ++j) {
        auto scaled = magnitude_share(vector[i + j], largest) / length * float{kLevels};
        auto level = static_cast<std::int32_t>(scaled);
        auto uniform = static_cast<float>(static_cast<std::int32_t>(random[j] >> 8)) * 0x1p-24F;
        level += uniform < scaled - static_cast<float>(level) ? 1 : 0;
        whole[j] = static_cast<std::uint8_t>(kLevels + (vector[i + j] < 0 ? -level : level));
      }
      pack<kBits>(whole, size, codes + i / 8 * kBits);
    }
  }
}

template <int kBits, bool kAdd>
void decode_levels_bits(const std::uint8_t* codes, const float* norms, std::size_t bucket,
                        float* out, std::size_t count) {
  constexpr std::int32_t kLevels = (1 << (kBits - 1)) - 1;
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = count - first < bucket ? count : first + bucket;
    auto norm = *norms++;
    for (std::size_t i = first; i < last; i += kChunk) {
      auto size = last - i < kChunk ? last - i : kChunk;
      alignas(64) std::uint8_t whole[kChunk];
      unpack<kBits>(codes + i / 8 * kBits, size, whole);
      for (std::size_t j = 0; j < size; ++j) {
        auto level = static_cast<float>(static_cast<std::int32_t>(whole[j]) - kLevels);
        auto value = level / float{kLevels} * norm;
        out[i + j] = kAdd ? out[i + j] + value : value;
      }
    }
  }
}

void encode_levels(const float* vector, std::size_t count, int bits, std::size_t bucket,
                   bool euclidean, std::uint64_t key, std::uint8_t* codes, float* norms) {
  constexpr decltype(&encode_levels_bits<2>) kByBits[] = {
      encode_levels_bits<2>, encode_levels_bits<3>, encode_levels_bits<4>, encode_levels_bits<5>,
      encode_levels_bits<6>, encode_levels_bits<7>, encode_levels_bits<8>};
  kByBits[bits - 2](vector, count, bucket, euclidean, key, codes, norms);
}

template <bool kAdd>
void decode_levels_table(const std::uint8_t* codes, const float* norms, int bits,
                         std::size_t bucket, float* out, std::size_t count) {
  constexpr decltype(&decode_levels_bits<2, kAdd>) kByBits[] = {
      decode_levels_bits<2, kAdd>, decode_levels_bits<3, kAdd>, decode_levels_bits<4, kAdd>,
      decode_levels_bits<5, kAdd>, decode_levels_bits<6, kAdd>, decode_levels_bits<7, kAdd>,
      decode_levels_bits<8, kAdd>};
  kByBits[bits - 2](codes, norms, bucket, out, count);
}

void decode_levels(const std::uint8_t* codes, const float* norms, int bits, std::size_t bucket,
                   float* out, std::size_t count, bool add) {
  (add ? decode_levels_table<true> : decode_levels_table<false>)(codes, norms, bits, bucket, out,
                                                                 count);
}

}  // namespace
}  // namespace headrace::codec::HEADRACE_ISA
