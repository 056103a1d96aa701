// Every kernel table that this processor supports, against the reference, bit by bit.
#include "reduce/reduce.hpp"

#include <cstdio>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "check.hpp"
#include "reduce/kernels.hpp"
#include "reduce/reference.hpp"

using namespace headrace;
using reference::Bits;
using reference::Expected;

namespace {

constexpr std::size_t kLongest = 257;  // every length up to it; 257 > 4 registers of 64 bytes
constexpr std::size_t kLarge = 20'011;
constexpr std::size_t kAlignments = 64;
constexpr char kGuard = 'x';

DataType type_of(int index) { return static_cast<DataType>(index); }
bool is_floating(int type) { return type <= static_cast<int>(DataType::kFloat8E5M2); }

Bits element(const char* from, std::size_t size) {
  Bits bits = 0;
  std::memcpy(&bits, from, size);
  return bits;
}

// Zeros, least and largest magnitudes, ones, infinities, quiet and signalling NaNs with payloads,
// each of either sign, for formats of any split: bits below the sign around every power of two.
std::vector<Bits> specials(std::size_t size) {
  int width = static_cast<int>(8 * size);
  auto all = width == 64 ? ~Bits{0} : (Bits{1} << width) - 1;
  std::vector<Bits> found;
  for (int low = 0; low <= width; ++low) {
    auto upper = low == width ? 0 : all << low & all;  // ones above, as in infinities
    for (auto bits : {upper, upper + 1, upper - 1, upper >> 1, upper >> 2, ~upper}) {
      found.push_back(bits & all);
      found.push_back((bits ^ Bits{1} << (width - 1)) & all);
    }
  }
  return found;
}

// Elements at an odd place in memory, between guards.
class Array {
 public:
  Array(std::size_t size, std::size_t count, std::size_t offset)
      : bytes_(size * count), offset_(offset), memory_(bytes_ + kAlignments + 1, kGuard) {}
  char* data() { return memory_.data() + offset_; }
  void fill(const std::vector<char>& from) {
    if (bytes_ > 0) std::memcpy(data(), from.data(), bytes_);
  }
  bool guarded() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + bytes_) && memory_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::size_t offset_;
  std::vector<char> memory_;
};

class Fuzz {
 public:
  // Half of the elements random bits, half of them special values; bools are any byte.
  std::vector<char> elements(std::size_t size, std::size_t count) {
    auto special = specials(size);
    std::vector<char> made(size * count);
    for (std::size_t i = 0; i < count; ++i) {
      Bits bits = random_() % 2 == 0 ? random_() : special[random_() % special.size()];
      std::memcpy(made.data() + i * size, &bits, size);
    }
    return made;
  }
  std::size_t offset() { return random_() % kAlignments; }
  std::size_t below(std::size_t limit) { return random_() % limit; }

 private:
  std::mt19937_64 random_{7};
};

void compare(const KernelTable& table, int type, const char* what, const char* found,
             const std::vector<Expected>& wanted) {
  auto size = element_bytes(type_of(type));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto bits = element(found + i * size, size);
    bool same = wanted[i].any_nan ? reference::is_nan(type_of(type), bits) : bits == wanted[i].bits;
    if (!same) {
      std::fprintf(stderr, "%s, type %d, %s, element %zu of %zu: %#llx, needs %#llx%s\n",
                   table.name, type, what, i, wanted.size(), static_cast<unsigned long long>(bits),
                   static_cast<unsigned long long>(wanted[i].bits),
                   wanted[i].any_nan ? " or any other NaN" : "");
    }
    CHECK(same);
  }
}

void check_reduce(int type, int op, const std::vector<char>& a, const std::vector<char>& b,
                  Fuzz& fuzz) {
  auto size = element_bytes(type_of(type));
  auto count = a.size() / size;
  std::vector<Expected> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    wanted.push_back(reference::reduce(type_of(type), static_cast<Operator>(op),
                                       element(a.data() + i * size, size),
                                       element(b.data() + i * size, size)));
  }
  for (const auto* table : kernel_tables()) {
    auto kernel = table->reduce[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
    Array out(size, count, fuzz.offset());
    Array left(size, count, fuzz.offset());
    Array right(size, count, fuzz.offset());
    left.fill(a);
    right.fill(b);
    kernel(out.data(), left.data(), right.data(), count);
    compare(*table, type, "three addresses", out.data(), wanted);
    kernel(left.data(), left.data(), right.data(), count);
    compare(*table, type, "into the first", left.data(), wanted);
    left.fill(a);
    kernel(right.data(), left.data(), right.data(), count);
    compare(*table, type, "into the second", right.data(), wanted);
    CHECK(out.guarded() && left.guarded() && right.guarded());
  }
}

void check_divide(int type, std::int64_t divisor, const std::vector<char>& elements, Fuzz& fuzz) {
  auto size = element_bytes(type_of(type));
  auto count = elements.size() / size;
  std::vector<Expected> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = element(elements.data() + i * size, size);
    wanted.push_back(reference::divide(type_of(type), bits, divisor));
  }
  for (const auto* table : kernel_tables()) {
    Array array(size, count, fuzz.offset());
    array.fill(elements);
    table->divide[static_cast<std::size_t>(type)](array.data(), count, divisor);
    compare(*table, type, "divide", array.data(), wanted);
    CHECK(array.guarded());
  }
}

// Every pair of values of one byte; every value of two bytes with some of the others.
std::pair<std::vector<char>, std::vector<char>> many_pairs(std::size_t size, Fuzz& fuzz) {
  std::vector<char> a(size << 16);
  auto b = fuzz.elements(size, 1 << 16);
  for (Bits bits = 0; bits < 1 << 16; ++bits) {
    auto first = size == 1 ? bits >> 8 : bits;
    std::memcpy(a.data() + bits * size, &first, size);
    if (size == 1) b[bits] = static_cast<char>(bits);
  }
  return {a, b};
}

void reduces_as_the_reference() {
  Fuzz fuzz;
  for (int type = 0; type < kDataTypes; ++type) {
    auto size = element_bytes(type_of(type));
    for (int op = 0; op < kOperators; ++op) {
      bool meaningless = is_floating(type) && op >= static_cast<int>(Operator::kBand);
      CHECK((reduce_kernel(type_of(type), static_cast<Operator>(op)) == nullptr) == meaningless);
      if (meaningless) continue;
      for (std::size_t count = 0; count <= kLongest; ++count) {
        check_reduce(type, op, fuzz.elements(size, count), fuzz.elements(size, count), fuzz);
      }
      check_reduce(type, op, fuzz.elements(size, kLarge), fuzz.elements(size, kLarge), fuzz);
      if (size > 2) continue;
      auto [a, b] = many_pairs(size, fuzz);
      check_reduce(type, op, a, b, fuzz);
    }
  }
}

void divides_as_the_reference() {
  Fuzz fuzz;
  for (int type = 0; type < kDataTypes; ++type) {
    auto size = element_bytes(type_of(type));
    for (std::int64_t divisor :
         {1LL, 2LL, 3LL, 7LL, 8LL, 127LL, 128LL, 255LL, 256LL, 1'000LL, 65'535LL, 65'537LL,
          4'294'967'296LL, 9'223'372'036'854'775'807LL}) {
      for (std::size_t count : {0, 1, 7, 64, 257}) {
        check_divide(type, divisor, fuzz.elements(size, count), fuzz);
      }
      check_divide(type, divisor, fuzz.elements(size, kLarge), fuzz);
      if (size <= 2) check_divide(type, divisor, many_pairs(size, fuzz).first, fuzz);
    }
  }
}

// A few literal results, in case reference and kernels share an error.
void known_results() {
  auto reduce = [](DataType type, Operator op, std::uint16_t a, std::uint16_t b) {
    reduce_kernel(type, op)(&a, &a, &b, 1);
    return a;
  };
  auto sum = [&](DataType type, std::uint16_t a, std::uint16_t b) {
    return reduce(type, Operator::kSum, a, b);
  };
  // bfloat16: 1 + 2^-8 lies halfway between 1 and 1 + 2^-7: ties go to even (1).
  CHECK(sum(DataType::kBFloat16, 0x3f80, 0x3b80) == 0x3f80);
  // 1.0078125 + 2^-8 lies halfway too: ties go to even, upwards here.
  CHECK(sum(DataType::kBFloat16, 0x3f81, 0x3b80) == 0x3f82);
  CHECK((sum(DataType::kBFloat16, 0x7f80, 0xff80) & 0x7fff) > 0x7f80);  // inf - inf is a NaN
  // float16: 1 + 2^-11 is halfway between 1 and 1 + 2^-10.
  CHECK(sum(DataType::kFloat16, 0x3c00, 0x1000) == 0x3c00);
  CHECK(sum(DataType::kFloat16, 0x3c01, 0x1000) == 0x3c02);
  CHECK(sum(DataType::kFloat16, 0x7bff, 0x7bff) == 0x7c00);  // overflow is infinity
  // float8_e4m3fn: 448 + 16 is halfway to what would be 480; 448 + 448 is too large.
  CHECK(sum(DataType::kFloat8E4M3, 0x7e, 0x58) == 0x7e);
  CHECK(sum(DataType::kFloat8E4M3, 0xfe, 0xfe) == 0xfe);
  CHECK(sum(DataType::kFloat8E4M3, 0x01, 0x01) == 0x02);  // the least subnormal number, doubled
  CHECK(sum(DataType::kFloat8E5M2, 0x7b, 0x7b) == 0x7c);
  CHECK(sum(DataType::kFloat8E5M2, 0x3c, 0x38) == 0x3e);                     // 1 + 0.5
  CHECK(reduce(DataType::kFloat8E4M3, Operator::kMin, 0x80, 0x00) == 0x80);  // -0 < +0
  CHECK(reduce(DataType::kFloat8E4M3, Operator::kMax, 0x80, 0x00) == 0x00);
  CHECK(reduce(DataType::kFloat16, Operator::kMin, 0x7c01, 0xfc00) == 0x7c01);   // a NaN, as it is
  CHECK(reduce(DataType::kBFloat16, Operator::kMax, 0x7f80, 0x7f81) == 0x7fc1);  // made quiet
  CHECK(reduce(DataType::kUInt16, Operator::kProduct, 0xffff, 0xffff) == 1);

  std::vector<std::int8_t> bytes{100, -100, 7};
  divide(bytes.data(), bytes.size(), DataType::kInt8, 3);
  CHECK(bytes[0] == 33 && bytes[1] == -33 && bytes[2] == 2);
  divide(bytes.data(), bytes.size(), DataType::kInt8, 300);  // more ranks than the type can hold
  CHECK(bytes[0] == 0 && bytes[1] == 0 && bytes[2] == 0);
  std::uint16_t half = 0x4400;  // 4.0
  divide(&half, 1, DataType::kFloat16, 2);
  CHECK(half == 0x4000);
}

}  // namespace

int main() {
  known_results();
  reduces_as_the_reference();
  divides_as_the_reference();
}
