// Rows of bits: one set of chunks per rank, link or group.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::synthesis {

class BitRows {
 public:
  BitRows() = default;
  BitRows(std::size_t rows, std::size_t bits) : words_((bits + 63) / 64), data_(rows * words_, 0) {}

  std::size_t words() const { return words_; }
  std::uint64_t* row(std::size_t i) { return data_.data() + i * words_; }
  const std::uint64_t* row(std::size_t i) const { return data_.data() + i * words_; }
  void set(std::size_t i, std::int32_t bit) { row(i)[bit >> 6] |= mask(bit); }
  void clear(std::size_t i, std::int32_t bit) { row(i)[bit >> 6] &= ~mask(bit); }
  bool has(std::size_t i, std::int32_t bit) const { return (row(i)[bit >> 6] & mask(bit)) != 0; }
  int count(std::size_t i) const {
    int total = 0;
    for (std::size_t w = 0; w < words_; ++w) total += std::popcount(row(i)[w]);
    return total;
  }

 private:
  static std::uint64_t mask(std::int32_t bit) { return std::uint64_t{1} << (bit & 63); }
  std::size_t words_ = 0;
  std::vector<std::uint64_t> data_;
};

template <class Action>
void for_each_bit(std::uint64_t word, std::size_t index, Action&& action) {
  for (; word != 0; word &= word - 1) {
    action(
        static_cast<std::int32_t>(index * 64 + static_cast<std::size_t>(std::countr_zero(word))));
  }
}

}  // namespace headrace::synthesis
