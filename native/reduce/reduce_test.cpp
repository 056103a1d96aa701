#include "reduce/reduce.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "reduce/kernels.hpp"

using namespace headrace;

namespace {

constexpr std::size_t kCounts[] = {0, 1, 3, 8, 31, 1000};

template <class T>
T expected(Operator op, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  switch (op) {
    case Operator::kSum:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case Operator::kProduct:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case Operator::kMin:
      return b < a ? b : a;
    case Operator::kMax:
      return a < b ? b : a;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == Operator::kBand) return static_cast<T>(a & b);
    if (op == Operator::kBor) return static_cast<T>(a | b);
    return static_cast<T>(a ^ b);
  }
  return a;
}

// Against a plain loop, on unaligned memory, with the bytes around left alone.
template <class T>
void matches_plain_loop(DataType type, const KernelTable& table) {
  std::mt19937_64 random(7);
  for (int o = 0; o < kOperators; ++o) {
    auto kernel = table[static_cast<std::size_t>(type)][static_cast<std::size_t>(o)];
    bool bitwise = o >= static_cast<int>(Operator::kBand);
    CHECK((kernel == nullptr) == (bitwise && !std::is_integral_v<T>));
    if (kernel == nullptr) continue;
    for (auto count : kCounts) {
      std::vector<T> a(count);
      std::vector<T> b(count);
      for (auto& value : a) value = static_cast<T>(static_cast<std::int64_t>(random()) >> 40);
      for (auto& value : b) value = static_cast<T>(static_cast<std::int64_t>(random()) >> 40);
      std::vector<char> memory(count * sizeof(T) + 2, 'x');
      std::vector<char> source(count * sizeof(T) + 1);
      if (count > 0) {
        std::memcpy(memory.data() + 1, a.data(), count * sizeof(T));
        std::memcpy(source.data() + 1, b.data(), count * sizeof(T));
      }
      kernel(memory.data() + 1, source.data() + 1, count);
      CHECK(memory.front() == 'x' && memory.back() == 'x');
      for (std::size_t i = 0; i < count; ++i) {
        T got;
        std::memcpy(&got, memory.data() + 1 + i * sizeof(T), sizeof(T));
        CHECK(got == expected(static_cast<Operator>(o), a[i], b[i]));
      }
    }
  }
}

void half_types_round_to_nearest_even(const KernelTable& table) {
  auto sum = [&](DataType type, std::uint16_t a, std::uint16_t b) {
    table[static_cast<std::size_t>(type)][0](&a, &b, 1);
    return a;
  };
  // bfloat16: 1 + 2^-8 lies halfway between 1 and 1 + 2^-7: ties go to even (1).
  CHECK(sum(DataType::kBFloat16, 0x3f80, 0x3b80) == 0x3f80);
  // 1.0078125 + 2^-8 lies halfway too: ties go to even, upwards here.
  CHECK(sum(DataType::kBFloat16, 0x3f81, 0x3b80) == 0x3f82);
  CHECK(sum(DataType::kBFloat16, 0x7f80, 0xff80) > 0x7f80);  // inf - inf is a NaN
  // float16: 1 + 2^-11 is halfway between 1 and 1 + 2^-10.
  CHECK(sum(DataType::kFloat16, 0x3c00, 0x1000) == 0x3c00);
  CHECK(sum(DataType::kFloat16, 0x3c01, 0x1000) == 0x3c02);
  CHECK(sum(DataType::kFloat16, 0x7bff, 0x7bff) == 0x7c00);  // overflow is infinity
}

void extremes_ignore_order(const KernelTable& table) {
  auto nan = std::numeric_limits<float>::quiet_NaN();
  for (auto op : {Operator::kMin, Operator::kMax}) {
    auto kernel = table[static_cast<std::size_t>(DataType::kFloat32)][static_cast<std::size_t>(op)];
    auto of = [&](float a, float b) {
      kernel(&a, &b, 1);
      return a;
    };
    CHECK(std::isnan(of(nan, 1)) && std::isnan(of(1, nan)));
    bool negative = op == Operator::kMin;
    CHECK(std::signbit(of(-0.0f, 0.0f)) == negative && std::signbit(of(0.0f, -0.0f)) == negative);
  }
}

void instruction_sets_agree() {
#ifdef HEADRACE_HAVE_AVX2
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return;
  std::mt19937_64 random(11);
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kOperators; ++o) {
      auto plain = portable::kernels()[static_cast<std::size_t>(t)][static_cast<std::size_t>(o)];
      auto fast = avx2::kernels()[static_cast<std::size_t>(t)][static_cast<std::size_t>(o)];
      CHECK((plain == nullptr) == (fast == nullptr));
      if (plain == nullptr) continue;
      auto size = element_bytes(static_cast<DataType>(t));
      for (auto count : kCounts) {
        std::vector<unsigned char> a(count * size + 1);
        std::vector<unsigned char> b(count * size + 1);
        for (auto& byte : a) byte = static_cast<unsigned char>(random());
        for (auto& byte : b) byte = static_cast<unsigned char>(random());
        // Keep exponents moderate: the sign and payload of a NaN may differ between sets.
        bool floating = t <= static_cast<int>(DataType::kBFloat16);
        for (std::size_t i = 0; floating && i < count; ++i) {
          a[(i + 1) * size - 1] = b[(i + 1) * size - 1] = 0x3c;
        }
        auto other = a;
        plain(a.data(), b.data(), count);
        fast(other.data(), b.data(), count);
        CHECK(a == other);
      }
    }
  }
#endif
}

void divides() {
  std::vector<float> floats{3, -6, 1};
  divide(floats.data(), floats.size(), DataType::kFloat32, 3);
  CHECK(floats[0] == 1 && floats[1] == -2 && floats[2] == 1.0f / 3.0f);
  std::vector<std::int8_t> bytes{100, -100, 7};
  divide(bytes.data(), bytes.size(), DataType::kInt8, 300);  // more ranks than the type can hold
  CHECK(bytes[0] == 0 && bytes[1] == 0 && bytes[2] == 0);
  std::vector<std::uint16_t> halves{0x4400, 0x4400};  // 4.0 as float16; 3 * 2^8 as bfloat16
  divide(halves.data(), 1, DataType::kFloat16, 2);
  CHECK(halves[0] == 0x4000);
  std::uint16_t bfloat = 0x4080;  // 4.0
  divide(&bfloat, 1, DataType::kBFloat16, 2);
  CHECK(bfloat == 0x4000);
}

void matches_plain_loops(const KernelTable& table) {
  matches_plain_loop<float>(DataType::kFloat32, table);
  matches_plain_loop<double>(DataType::kFloat64, table);
  matches_plain_loop<std::int8_t>(DataType::kInt8, table);
  matches_plain_loop<std::uint8_t>(DataType::kUInt8, table);
  matches_plain_loop<std::int16_t>(DataType::kInt16, table);
  matches_plain_loop<std::int32_t>(DataType::kInt32, table);
  matches_plain_loop<std::int64_t>(DataType::kInt64, table);
  half_types_round_to_nearest_even(table);
  extremes_ignore_order(table);
}

}  // namespace

int main() {
  matches_plain_loops(portable::kernels());
#ifdef HEADRACE_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    matches_plain_loops(avx2::kernels());
  }
#endif
  instruction_sets_agree();
  divides();
}
