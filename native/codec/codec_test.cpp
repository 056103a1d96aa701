// Every kernel table that this processor supports, against loops over single elements, bit by bit.
#include "codec/codec.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.hpp"
#include "codec/kernels.hpp"
#include "reduce/reference.hpp"

using namespace headrace;
using codec::CodecTable;
using codec::packed_bytes;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
constexpr std::size_t kCounts[] = {0,  1,  2,   7,   8,   9,   15,  16,   17,   31,
                                   63, 64, 127, 511, 512, 513, 520, 1000, 4099, 70'003};
constexpr int kKinds = 8;

std::mt19937 engine(16);  // NOLINT: the same sequence in every run

// Of each kind: normal, zeros of either sign, tiny, few values, huge, with NaN, with infinities,
// any bits.
Floats vector_of(int kind, std::size_t count) {
  std::normal_distribution<float> normal;
  Floats made(count);
  for (auto& value : made) {
    value = normal(engine);
    auto die = engine() % 20;
    if (kind == 1) value = std::copysign(0.0F, value);
    if (kind == 2) value *= 1e-39F;
    if (kind == 3) value = std::round(value);
    if (kind == 4) value *= 1e38F;
    if (kind == 5 && die == 0) value = std::copysign(kNan, value);
    if (kind == 6 && die == 0) value = std::copysign(kInfinity, value);
    if (kind == 7) {
      auto bits = static_cast<std::uint32_t>(engine());
      std::memcpy(&value, &bits, sizeof value);
    }
  }
  return made;
}

// Memory at an odd place, followed by bytes that must stay as they are.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t count)
      : bytes_(count * sizeof(T)), memory_(bytes_ + 1 + kGuards, kGuard) {}
  T* data() { return reinterpret_cast<T*>(memory_.data() + offset()); }
  std::vector<T> taken() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i < offset() || i >= offset() + bytes_) CHECK(memory_[i] == kGuard);
    }
    std::vector<T> result(bytes_ / sizeof(T));
    if (bytes_ > 0) std::memcpy(result.data(), memory_.data() + offset(), bytes_);
    return result;
  }

 private:
  static constexpr std::size_t kGuards = 64;
  static constexpr std::uint8_t kGuard = 0xa5;
  // Only bytes can be at any address: the sanitizers watch the others.
  static constexpr std::size_t offset() { return sizeof(T) == 1 ? 1 : 0; }
  std::size_t bytes_;
  Bytes memory_;
};

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

bool same(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

void put(Bytes& packed, std::size_t at, int bits, unsigned code) {
  for (int bit = 0; bit < bits; ++bit) {
    auto place = at * static_cast<std::size_t>(bits) + static_cast<std::size_t>(bit);
    if ((code >> bit & 1) != 0) packed[place / 8] |= static_cast<std::uint8_t>(1 << (place % 8));
  }
}

void test_signs(const CodecTable& table, const Floats& vector) {
  Bytes expected(packed_bytes(vector.size(), 1));
  Floats decoded;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    put(expected, i, 1, vector[i] >= 0 ? 1 : 0);
    decoded.push_back(vector[i] >= 0 ? 0.3F : -0.3F);
  }
  Guarded<std::uint8_t> bits(expected.size());
  table.pack_signs(vector.data(), vector.size(), bits.data());
  CHECK(bits.taken() == expected);
  Guarded<float> out(vector.size());
  table.unpack_signs(expected.data(), 0.3F, out.data(), vector.size());
  CHECK(same(out.taken(), decoded));
}

void test_majority(const CodecTable& table) {
  for (std::size_t ranks : {1, 2, 3, 4, 5, 7, 8, 17, 64}) {
    for (std::size_t bytes : {0, 1, 63, 64, 65, 200}) {
      Bytes bits(ranks * bytes);
      for (auto& byte : bits) byte = static_cast<std::uint8_t>(engine());
      Bytes expected(bytes);
      for (std::size_t i = 0; i < 8 * bytes; ++i) {
        std::size_t votes = 0;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          votes += bits[rank * bytes + i / 8] >> (i % 8) & 1;
        }
        put(expected, i, 1, 2 * votes >= ranks ? 1 : 0);
      }
      Guarded<std::uint8_t> out(bytes);
      table.majority(bits.data(), ranks, bytes, bytes, out.data());
      CHECK(out.taken() == expected);
    }
  }
}

void test_codes(const CodecTable& table, const Floats& vector, int bits, std::size_t bucket) {
  auto count = vector.size();
  auto levels = static_cast<float>((1 << bits) - 1);
  Bytes codes(packed_bytes(count, bits));
  Floats ranges;
  Floats decoded;
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = std::min(count, first + bucket);
    auto begin = vector.begin() + static_cast<std::ptrdiff_t>(first);
    auto end = vector.begin() + static_cast<std::ptrdiff_t>(last);
    bool finite = std::all_of(begin, end, [](float value) { return std::isfinite(value); });
    auto low = finite ? *std::min_element(begin, end) : kNan;
    auto high = finite ? *std::max_element(begin, end) : kNan;
    auto step = high / levels - low / levels;
    ranges.insert(ranges.end(), {low, step});
    for (std::size_t i = first; i < last; ++i) {
      auto scaled = std::nearbyint((vector[i] - low) / step);
      auto code = std::isnan(scaled) ? 0 : std::clamp(scaled, 0.0F, levels);
      put(codes, i, bits, static_cast<unsigned>(code));
      // volatile: rounded twice, as written
      volatile float product = code * step;
      decoded.push_back(product + low);
    }
  }
  Guarded<std::uint8_t> made(codes.size());
  Guarded<float> found(ranges.size());
  table.quantize(vector.data(), count, bits, bucket, made.data(), found.data());
  CHECK(made.taken() == codes);
  CHECK(same(found.taken(), ranges));
  Guarded<float> out(count);
  table.dequantize(codes.data(), ranges.data(), bits, bucket, out.data(), count, false);
  CHECK(same(out.taken(), decoded));
  std::fill_n(out.data(), count, 0.5F);
  table.dequantize(codes.data(), ranges.data(), bits, bucket, out.data(), count, true);
  for (auto& value : decoded) value = 0.5F + value;
  CHECK(same(out.taken(), decoded));
}

using Words = std::array<std::uint32_t, 4>;

// Philox4x32-10 of a counter of 128 bits and a key.
Words philox(Words counter, std::uint32_t low, std::uint32_t high) {
  for (int round = 0; round < 10; ++round) {
    auto even = std::uint64_t{0xd2511f53} * counter[0];
    auto odd = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ low,
               static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ high,
               static_cast<std::uint32_t>(even)};
    low += 0x9e3779b9;
    high += 0xbb67ae85;
  }
  return counter;
}

// Known answers, of the authors' Random123 library.
void test_philox() {
  constexpr std::uint32_t kOnes = ~std::uint32_t{0};
  CHECK((philox({0, 0, 0, 0}, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes) ==
         Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
         Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void test_levels(const CodecTable& table, const Floats& vector, int bits, std::size_t bucket,
                 bool euclidean) {
  auto count = vector.size();
  auto levels = (1 << (bits - 1)) - 1;
  auto low = static_cast<std::uint32_t>(engine());
  auto high = static_cast<std::uint32_t>(engine());
  Bytes codes(packed_bytes(count, bits));
  Floats norms;
  Floats decoded;
  Words random{};
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = std::min(count, first + bucket);
    auto begin = vector.begin() + static_cast<std::ptrdiff_t>(first);
    auto end = vector.begin() + static_cast<std::ptrdiff_t>(last);
    float largest = 0;
    for (auto i = begin; i < end; ++i) {
      largest = std::isnan(*i) || std::isnan(largest) ? kNan : std::max(largest, std::abs(*i));
    }
    auto share = [&](float value) {
      auto found = std::abs(value / largest);
      return std::isnan(found) ? 0 : found;
    };
    double squares = 0;
    for (auto i = begin; i < end; ++i) squares += double{share(*i)} * double{share(*i)};
    auto length = euclidean ? std::max(1.0F, static_cast<float>(std::sqrt(squares))) : 1.0F;
    norms.push_back(largest * length);
    for (std::size_t i = first; i < last; ++i) {
      auto scaled = share(vector[i]) / length * static_cast<float>(levels);
      if (i % 4 == 0) random = philox({static_cast<std::uint32_t>(i / 4), 0, 0, 0}, low, high);
      auto level = static_cast<int>(std::floor(scaled));
      if ((random[i % 4] >> 8) < (scaled - std::floor(scaled)) * 0x1p24) ++level;
      if (vector[i] < 0) level = -level;
      put(codes, i, bits, static_cast<unsigned>(levels + level));
      decoded.push_back(static_cast<float>(level) / static_cast<float>(levels) * norms.back());
    }
  }
  Guarded<std::uint8_t> made(codes.size());
  Guarded<float> found(norms.size());
  table.encode_levels(vector.data(), count, bits, bucket, euclidean,
                      std::uint64_t{high} << 32 | low, made.data(), found.data());
  CHECK(made.taken() == codes);
  CHECK(same(found.taken(), norms));
  Guarded<float> out(count);
  table.decode_levels(codes.data(), norms.data(), bits, bucket, out.data(), count, false);
  CHECK(same(out.taken(), decoded));
  std::fill_n(out.data(), count, 0.5F);
  table.decode_levels(codes.data(), norms.data(), bits, bucket, out.data(), count, true);
  for (auto& value : decoded) value = 0.5F + value;
  CHECK(same(out.taken(), decoded));
}

void test_packing(const CodecTable& table, std::size_t count) {
  for (int bits = 1; bits <= 8; ++bits) {
    Bytes codes(count);
    Bytes packed(packed_bytes(count, bits));
    for (std::size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<std::uint8_t>(engine() >> (32 - bits));
      put(packed, i, bits, codes[i]);
    }
    Guarded<std::uint8_t> made(packed.size());
    table.pack_codes(codes.data(), count, bits, made.data());
    CHECK(made.taken() == packed);
    Guarded<std::uint8_t> out(count);
    table.unpack_codes(packed.data(), count, bits, out.data());
    CHECK(out.taken() == codes);
  }
}

void test_float8(const CodecTable& table, const Floats& vector, std::size_t bucket) {
  auto count = vector.size();
  Bytes codes(count);
  Floats scales;
  Floats decoded(count);
  for (std::size_t first = 0; first < count; first += bucket) {
    auto last = std::min(count, first + bucket);
    std::uint32_t largest = 0;
    for (auto i = first; i < last; ++i)
      largest = std::max(largest, bits_of(vector[i]) & 0x7fffffff);
    auto scale = reference::value_of<float>(largest) / 448;
    if (scale < std::numeric_limits<float>::min()) scale = std::numeric_limits<float>::min();
    scales.push_back(scale);
    for (auto i = first; i < last; ++i) {
      codes[i] = static_cast<std::uint8_t>(reference::kFloat8E4M3.narrow(vector[i] / scale));
      decoded[i] = reference::kFloat8E4M3.widen(codes[i]) * scale;
    }
  }
  Guarded<std::uint8_t> made(count);
  Guarded<float> found(scales.size());
  table.encode_float8(vector.data(), count, bucket, made.data(), found.data());
  CHECK(same(found.taken(), scales));
  auto taken = made.taken();
  for (std::size_t i = 0; i < count; ++i) {
    // A NaN may have either sign.
    CHECK(taken[i] == codes[i] ||
          (reference::kFloat8E4M3.is_nan(taken[i]) && reference::kFloat8E4M3.is_nan(codes[i])));
  }
  Guarded<float> out(count);
  table.decode_float8(codes.data(), scales.data(), bucket, out.data(), count, false);
  CHECK(same(out.taken(), decoded));
  std::fill_n(out.data(), count, 0.5F);
  table.decode_float8(codes.data(), scales.data(), bucket, out.data(), count, true);
  for (auto& value : decoded) value = 0.5F + value;
  CHECK(same(out.taken(), decoded));
}

void test_rounding(const CodecTable& table, const Floats& vector, bool brain) {
  const auto& format = brain ? reference::kBFloat16 : reference::kFloat16;
  auto count = vector.size();
  Floats left(count, 0.25F);
  for (std::size_t i = 0; i < count; ++i) {
    auto rest = vector[i] - format.widen(format.narrow(vector[i]));
    if (std::isfinite(rest)) left[i] += rest;
  }
  Guarded<std::uint16_t> rounded(count);
  Guarded<float> residual(count);
  std::fill_n(residual.data(), count, 0.25F);
  table.round_with_residual(vector.data(), count, brain, rounded.data(), residual.data());
  CHECK(same(residual.taken(), left));
  auto taken = rounded.taken();
  for (std::size_t i = 0; i < count; ++i) {
    auto expected = format.narrow(vector[i]);
    CHECK(taken[i] == expected || (format.is_nan(taken[i]) && format.is_nan(expected)));
  }
}

void test_topk(const CodecTable& table, const Floats& vector, std::size_t chosen) {
  std::vector<std::int32_t> order(vector.size());
  std::iota(order.begin(), order.end(), 0);
  auto magnitude = [&](std::int32_t at) {
    return bits_of(vector[static_cast<std::size_t>(at)]) & 0x7fffffff;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return magnitude(a) > magnitude(b); });
  order.resize(chosen);
  std::sort(order.begin(), order.end());
  Guarded<std::int32_t> indices(chosen);
  Guarded<float> values(chosen);
  table.select_topk(vector.data(), vector.size(), chosen, indices.data(), values.data());
  CHECK(indices.taken() == order);
  auto taken = values.taken();
  for (std::size_t i = 0; i < chosen; ++i) {
    CHECK(bits_of(taken[i]) == bits_of(vector[static_cast<std::size_t>(order[i])]));
  }
}

void test_table(const CodecTable& table) {
  test_majority(table);
  for (auto count : kCounts) {
    test_packing(table, count);
    for (int kind = 0; kind < kKinds; ++kind) {
      auto vector = vector_of(kind, count);
      test_signs(table, vector);
      test_float8(table, vector, 64);
      for (bool brain : {false, true}) test_rounding(table, vector, brain);
      for (std::size_t chosen : {std::size_t{0}, count / 100, count / 2, count}) {
        test_topk(table, vector, chosen);
      }
      if (count > 0) test_topk(table, vector, 1);
      // Of the largest vectors one width, in turn.
      for (int bits = 2; bits <= 8; ++bits) {
        if (count > 1000 && bits != 2 + kind % 7) continue;
        constexpr std::size_t kBuckets[] = {8, 64, 520, 1 << 16};
        for (auto bucket : kBuckets) test_codes(table, vector, bits, bucket);
        auto turn = static_cast<std::size_t>(bits + 2 * kind) + count;
        test_levels(table, vector, bits, kBuckets[turn % 4], turn / 4 % 2 == 0);
      }
    }
  }
}

}  // namespace

int main() {
  test_philox();
  for (const auto* table : codec::codec_tables()) {
    test_table(*table);
    std::printf("%s: ok\n", table->name);
  }
}
