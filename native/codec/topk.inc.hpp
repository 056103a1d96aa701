// Exact selection of the largest magnitudes, by radix: histograms of 11, 10 and 10 bits, each of
// the elements that share the threshold's bits above, then one more pass that collects. The time
// depends little on the values, and no memory is needed. Compiled once per instruction set, like
// kernels.inc.hpp.
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace headrace::codec::HEADRACE_ISA {
namespace {

inline std::uint32_t magnitude_of(const float* element) {
  std::uint32_t bits;
  std::memcpy(&bits, element, sizeof bits);
  return bits & 0x7fffffff;
}

constexpr std::size_t kHitLanes = 16;

// Which of 16 elements have at least this magnitude, a bit each.
inline std::uint32_t hits(const float* vector, std::uint32_t least) {
#if defined(__AVX512F__)
  auto magnitude = _mm512_and_si512(_mm512_loadu_si512(vector), _mm512_set1_epi32(0x7fffffff));
  return _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(least)));
#elif defined(__AVX2__)
  auto half = [least](const float* from) {
    auto bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    auto below = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(least)),
                                    _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    return ~static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(below))) & 0xff;
  };
  return half(vector) | half(vector + 8) << 8;
#else
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < kHitLanes; ++i) any |= magnitude_of(vector + i) >= least ? 1 : 0;
  if (any == 0) return 0;
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < kHitLanes; ++i) {
    mask |= static_cast<std::uint32_t>(magnitude_of(vector + i) >= least) << i;
  }
  return mask;
#endif
}

// visit(index, magnitude) of all elements of at least this magnitude, in order.
template <class Visit>
inline void each_at_least(const float* vector, std::size_t count, std::uint32_t least,
                          Visit visit) {
  std::size_t i = 0;
  for (; i + kHitLanes <= count; i += kHitLanes) {
    for (auto mask = hits(vector + i, least); mask != 0; mask &= mask - 1) {
      auto at = i + static_cast<std::size_t>(__builtin_ctz(mask));
      visit(at, magnitude_of(vector + at));
    }
  }
  for (; i < count; ++i) {
    auto magnitude = magnitude_of(vector + i);
    if (magnitude >= least) visit(i, magnitude);
  }
}

constexpr int kHighShift = 20;  // of 31 bits: exponent and three bits of the mantissa
constexpr std::size_t kHighBins = 1 << 11;
constexpr std::size_t kLowBins = 1 << 10;
// Neighbours count in tables of their own: equal ones would wait for each other's store. Together
// they fit the first-level cache.
constexpr std::size_t kTables = 4;

struct Threshold {
  std::uint32_t least;  // smallest magnitude that is chosen
  std::size_t missing;  // how many of the bin from `least` on are chosen, the lowest indices first
  std::size_t held;     // how many it holds
};

// The bin in which the `wanted` largest end.
inline Threshold bin_of(const std::uint32_t* bins, std::size_t number, std::size_t wanted) {
  auto bin = number - 1;
  for (; bins[bin] < wanted; --bin) wanted -= bins[bin];
  return {static_cast<std::uint32_t>(bin), wanted, bins[bin]};
}

inline Threshold threshold_of(const float* vector, std::size_t count, std::size_t chosen) {
  std::uint32_t high[kTables][kHighBins];
  std::memset(high, 0, sizeof high);
  std::size_t i = 0;
  for (; i + kTables <= count; i += kTables) {
    for (std::size_t j = 0; j < kTables; ++j) ++high[j][magnitude_of(vector + i + j) >> kHighShift];
  }
  for (; i < count; ++i) ++high[0][magnitude_of(vector + i) >> kHighShift];
  for (std::size_t bin = 0; bin < kHighBins; ++bin) {
    high[0][bin] += high[1][bin] + high[2][bin] + high[3][bin];
  }
  auto found = bin_of(high[0], kHighBins, chosen);
  found.least <<= kHighShift;
  // A bin that is chosen whole needs no division.
  for (int shift = 10; shift >= 0 && found.missing < found.held; shift -= 10) {
    std::uint32_t low[kLowBins];
    std::memset(low, 0, sizeof low);
    auto least = found.least;
    each_at_least(vector, count, least, [&](std::size_t, std::uint32_t magnitude) {
      auto bin = (magnitude - least) >> shift;
      if (bin < kLowBins) ++low[bin];
    });
    found = bin_of(low, kLowBins, found.missing);
    found.least = least + (found.least << shift);
  }
  return found;
}

void select_topk(const float* vector, std::size_t count, std::size_t chosen, std::int32_t* indices,
                 float* values) {
  if (chosen == 0) return;
  auto threshold = threshold_of(vector, count, chosen);
  // Only a bin of one magnitude can be chosen in part.
  auto spare = threshold.held - threshold.missing;
  auto missing = spare > 0 ? threshold.missing : count;
  std::size_t made = 0;
  each_at_least(vector, count, threshold.least, [&](std::size_t at, std::uint32_t magnitude) {
    if (magnitude == threshold.least) {
      if (missing == 0) return;
      --missing;
    }
    indices[made] = static_cast<std::int32_t>(at);
    std::memcpy(values + made, vector + at, sizeof(float));
    ++made;
  });
}

}  // namespace
}  // namespace headrace::codec::HEADRACE_ISA
