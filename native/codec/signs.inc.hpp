// Bits of signs, and the majority of the ranks' bits. Compiled once per instruction set, like
// kernels.inc.hpp.
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace headrace::codec::HEADRACE_ISA {
namespace {

inline std::uint8_t sign_byte(const float* vector, std::size_t count) {
  unsigned byte = 0;
  for (std::size_t i = 0; i < count; ++i) byte |= static_cast<unsigned>(vector[i] >= 0) << i;
  return static_cast<std::uint8_t>(byte);
}

void pack_signs(const float* vector, std::size_t count, std::uint8_t* out) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    auto mask = static_cast<std::uint16_t>(
        _mm512_cmp_ps_mask(_mm512_loadu_ps(vector + i), _mm512_setzero_ps(), _CMP_GE_OQ));
    std::memcpy(out + i / 8, &mask, sizeof mask);
  }
#elif defined(__AVX2__)
  for (; i + 8 <= count; i += 8) {
    auto positive = _mm256_cmp_ps(_mm256_loadu_ps(vector + i), _mm256_setzero_ps(), _CMP_GE_OQ);
    out[i / 8] = static_cast<std::uint8_t>(_mm256_movemask_ps(positive));
  }
#endif
  for (; i < count; i += 8) out[i / 8] = sign_byte(vector + i, count - i < 8 ? count - i : 8);
}

void unpack_signs(const std::uint8_t* bits, float scale, float* out, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  auto plus = _mm512_set1_ps(scale);
  auto minus = _mm512_set1_ps(-scale);
  for (; i + 16 <= count; i += 16) {
    std::uint16_t mask;
    std::memcpy(&mask, bits + i / 8, sizeof mask);
    _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(mask, minus, plus));
  }
#elif defined(__AVX2__)
  auto plus = _mm256_set1_ps(scale);
  auto minus = _mm256_set1_ps(-scale);
  auto each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (; i + 8 <= count; i += 8) {
    auto own = _mm256_and_si256(_mm256_set1_epi32(bits[i / 8]), each);
    auto positive = _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, each));
    _mm256_storeu_ps(out + i, _mm256_blendv_ps(minus, plus, positive));
  }
#endif
  for (; i < count; ++i) out[i] = (bits[i / 8] >> (i % 8) & 1) != 0 ? scale : -scale;
}

constexpr std::size_t kVoteWords = 8;  // of 64 bits: a register of the widest instruction set
constexpr std::size_t kVoteBytes = 8 * kVoteWords;
constexpr int kMostPlanes = 33;

// Counts are bit-sliced: plane j holds bit j of 512 counters, to which a rank's bits are added by
// carries; then those of at least `least` are found from the highest plane down.
inline void vote(const std::uint8_t* bits, std::size_t ranks, std::size_t stride, std::size_t bytes,
                 int planes, std::uint8_t* out) {
  std::uint64_t counts[kMostPlanes][kVoteWords];
  std::memset(counts, 0, static_cast<std::size_t>(planes) * sizeof counts[0]);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::uint64_t carry[kVoteWords] = {};
    std::memcpy(carry, bits + rank * stride, bytes);
    for (int plane = 0; plane < planes; ++plane) {
      for (std::size_t word = 0; word < kVoteWords; ++word) {
        auto both = counts[plane][word] & carry[word];
        counts[plane][word] ^= carry[word];
        carry[word] = both;
      }
    }
  }
  auto least = (ranks + 1) / 2;
  std::uint64_t above[kVoteWords] = {};
  std::uint64_t equal[kVoteWords];
  std::memset(equal, 0xff, sizeof equal);
  for (int plane = planes; plane-- > 0;) {
    auto wanted = -static_cast<std::uint64_t>(least >> plane & 1);
    for (std::size_t word = 0; word < kVoteWords; ++word) {
      above[word] |= equal[word] & counts[plane][word] & ~wanted;
      equal[word] &= ~(counts[plane][word] ^ wanted);
    }
  }
  for (std::size_t word = 0; word < kVoteWords; ++word) above[word] |= equal[word];
  std::memcpy(out, above, bytes);
}

void majority(const std::uint8_t* bits, std::size_t ranks, std::size_t stride, std::size_t bytes,
              std::uint8_t* out) {
  int planes = 1;
  while (ranks >> planes != 0) ++planes;
  for (std::size_t i = 0; i < bytes; i += kVoteBytes) {
    auto size = bytes - i < kVoteBytes ? bytes - i : kVoteBytes;
    vote(bits + i, ranks, stride, size, planes, out + i);
  }
}

}  // namespace
}  // namespace headrace::codec::HEADRACE_ISA
