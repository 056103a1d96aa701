// GB per second that each loop reads and writes, for every kernel table that this processor
// supports, on 25 MB of floats, compared with memcpy. Argument: calls of each, of which the median
// counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "codec/codec.hpp"
#include "codec/kernels.hpp"

using namespace headrace;

namespace {

constexpr std::size_t kCount = 25'000'000 / sizeof(float);
constexpr std::size_t kBucket = 512;
constexpr std::size_t kRanks = 4;

int calls = 15;

template <class Action>
void row(const char* table, const char* loop, std::size_t bytes, Action action) {
  std::vector<double> seconds;
  action();
  for (int call = 0; call < calls; ++call) {
    auto begun = std::chrono::steady_clock::now();
    action();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  std::sort(seconds.begin(), seconds.end());
  auto median = seconds[seconds.size() / 2];
  std::printf("%-10s %-14s %8.3f ms %8.1f GB/s\n", table, loop, 1e3 * median,
              static_cast<double>(bytes) / median / 1e9);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) calls = std::max(1, std::atoi(arguments[1]));
  std::mt19937 engine(16);  // NOLINT: the same sequence in every run
  std::normal_distribution<float> normal;
  std::vector<float> vector(kCount);
  for (auto& value : vector) value = normal(engine);
  std::vector<float> out(kCount);
  std::vector<std::uint8_t> codes(kCount);
  std::vector<float> ranges(2 * (kCount / kBucket + 1));
  std::vector<std::int32_t> indices(kCount / 100);
  auto bytes = kCount * sizeof(float);
  row("", "memcpy", 2 * bytes, [&] { std::memcpy(out.data(), vector.data(), bytes); });
  for (const auto* table : codec::codec_tables()) {
    auto signs = codec::packed_bytes(kCount, 1);
    row(table->name, "pack signs", bytes + signs,
        [&] { table->pack_signs(vector.data(), kCount, codes.data()); });
    row(table->name, "unpack signs", bytes + signs,
        [&] { table->unpack_signs(codes.data(), 0.1F, out.data(), kCount); });
    row(table->name, "majority of 4", (kRanks + 1) * signs, [&] {
      table->majority(codes.data(), kRanks, signs, signs, codes.data() + kRanks * signs);
    });
    for (int bits = 2; bits <= 8; ++bits) {
      auto touched = bytes + codec::packed_bytes(kCount, bits) + 8 * (kCount / kBucket + 1);
      char name[] = "quantize 0";
      name[sizeof name - 2] = static_cast<char>('0' + bits);
      row(table->name, name, touched, [&] {
        table->quantize(vector.data(), kCount, bits, kBucket, codes.data(), ranges.data());
      });
      row(table->name, "dequantize", touched, [&] {
        table->dequantize(codes.data(), ranges.data(), bits, kBucket, out.data(), kCount, false);
      });
    }
    for (bool euclidean : {false, true}) {
      auto touched = bytes + codec::packed_bytes(kCount, 2) + 4 * (kCount / kBucket + 1);
      row(table->name, euclidean ? "levels of norm" : "of the largest", touched, [&] {
        table->encode_levels(vector.data(), kCount, 2, kBucket, euclidean, 16, codes.data(),
                             ranges.data());
      });
      row(table->name, "from levels", touched, [&] {
        table->decode_levels(codes.data(), ranges.data(), 2, kBucket, out.data(), kCount, false);
      });
    }
    auto narrow = bytes + kCount + 4 * (kCount / kBucket + 1);
    row(table->name, "float8", narrow,
        [&] { table->encode_float8(vector.data(), kCount, kBucket, codes.data(), ranges.data()); });
    row(table->name, "from float8", narrow, [&] {
      table->decode_float8(codes.data(), ranges.data(), kBucket, out.data(), kCount, false);
    });
    row(table->name, "top 1%", bytes, [&] {
      table->select_topk(vector.data(), kCount, indices.size(), indices.data(), out.data());
    });
  }
}
