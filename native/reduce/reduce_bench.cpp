// GB of results per second, for each type and every kernel table that this processor supports, in
// the caches and in memory, compared with memcpy. Argument: seconds for each of a figure's five
// rounds.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "reduce/kernels.hpp"

using namespace headrace;

namespace {

// Per array, of two or three.
constexpr std::size_t kBytes[] = {8u << 10, 128u << 10, 64u << 20};
constexpr const char* kWhere[] = {"8 KiB", "128 KiB", "64 MiB"};

// Byte whose elements are neither tiny nor huge in any floating-point type.
constexpr int kLeastByte = 0x34;
constexpr int kByteKinds = 16;

double seconds = 0.02;

// The best of five timings of `action`, which makes `bytes` of results, in GB/s.
template <class Action>
double speed(std::size_t bytes, Action action) {
  using Clock = std::chrono::steady_clock;
  action();
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    auto begun = Clock::now();
    std::size_t calls = 0;
    std::chrono::duration<double> spent{};
    do {
      action();
      ++calls;
      spent = Clock::now() - begun;
    } while (spent.count() < seconds);
    auto found = static_cast<double>(bytes) * static_cast<double>(calls) / spent.count() / 1e9;
    if (found > best) best = found;
  }
  return best;
}

struct Arrays {
  std::vector<char> a, b, c;
  explicit Arrays(std::size_t bytes) : a(bytes), b(bytes), c(bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      auto mixed = static_cast<std::uint32_t>(i) * 2654435761u;  // 2^32 over the golden ratio
      a[i] = static_cast<char>(kLeastByte + (mixed >> 28));
      b[i] = static_cast<char>(kLeastByte + (mixed >> 24) % kByteKinds);
    }
  }
};

template <class Cell>
void row(const char* first, const char* second, Cell cell) {
  std::printf("%-14s %-22s", first, second);
  for (auto bytes : kBytes) {
    Arrays arrays(bytes);
    std::printf(" %9.1f", cell(arrays, bytes));
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) seconds = std::atof(arguments[1]);
  std::printf("GB/s           %-22s", "");
  for (auto where : kWhere) std::printf(" %9s", where);
  std::printf("\n");
  row("memcpy", "", [](Arrays& on, std::size_t bytes) {
    return speed(bytes, [&] { std::memcpy(on.a.data(), on.b.data(), bytes); });
  });
  for (std::size_t type = 0; type < kDataTypes; ++type) {
    auto size = element_bytes(static_cast<DataType>(type));
    for (const auto* table : kernel_tables()) {
      auto sum = table->reduce[type][static_cast<std::size_t>(Operator::kSum)];
      auto least = table->reduce[type][static_cast<std::size_t>(Operator::kMin)];
      auto title = [&](const char* what) { return std::string(table->name) + " " + what; };
      row(kDataTypeTable[type].name, title("sum").c_str(), [&](Arrays& on, std::size_t bytes) {
        auto* a = on.a.data();
        return speed(bytes, [&] { sum(a, a, on.b.data(), bytes / size); });
      });
      row("", title("min").c_str(), [&](Arrays& on, std::size_t bytes) {
        auto* a = on.a.data();
        return speed(bytes, [&] { least(a, a, on.b.data(), bytes / size); });
      });
      if (type == static_cast<std::size_t>(DataType::kBool)) continue;
      row("", title("divide").c_str(), [&](Arrays& on, std::size_t bytes) {
        // Floating point by one: repeated division would end in subnormal numbers.
        auto divisor = type <= static_cast<std::size_t>(DataType::kFloat8E5M2) ? 1 : 3;
        return speed(bytes, [&] { table->divide[type](on.a.data(), bytes / size, divisor); });
      });
    }
    // The sum of two arrays in a third: at once, or added and then copied.
    auto sum = reduce_kernel(static_cast<DataType>(type), Operator::kSum);
    row("", "sum to a third", [&](Arrays& on, std::size_t bytes) {
      return speed(bytes, [&] { sum(on.c.data(), on.a.data(), on.b.data(), bytes / size); });
    });
    row("", "sum, then copy", [&](Arrays& on, std::size_t bytes) {
      auto* a = on.a.data();
      return speed(bytes, [&] {
        sum(a, a, on.b.data(), bytes / size);
        std::memcpy(on.c.data(), a, bytes);
      });
    });
  }
}
