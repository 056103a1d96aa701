// Ranges of codes, and how the entries of one are read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace::index {

// Codes from `first` to `last`, both included.
struct CodeRange {
  std::uint64_t first = 0;
  std::uint64_t last = ~std::uint64_t{0};
};

namespace detail {

// Keys that a scan of a short range reads at first: it learns its end from the keys.
constexpr std::size_t kFirstScan = 128;
constexpr std::size_t kLargestScan = std::size_t{1} << 14;

}  // namespace detail

// Reads at most `most` entries of a range, ascending, and returns how many. `scan(from, count, at)`
// reads up to `count` entries from a code on, writes their codes to `codes` + `at`, and returns how
// many.
template <class Scan>
std::size_t scan_range(CodeRange range, std::size_t most, std::uint64_t* codes, const Scan& scan) {
  std::size_t count = 0;
  for (auto step = detail::kFirstScan; count < most;
       step = std::min(4 * step, detail::kLargestScan)) {
    const auto needed =
        range.last == ~std::uint64_t{0} ? most - count : std::min(step, most - count);
    const auto read = scan(range.first, needed, count);
    auto* end = std::upper_bound(codes + count, codes + count + read, range.last);
    const bool ended = read < needed || end != codes + count + read;
    count = static_cast<std::size_t>(end - codes);
    if (ended || count == 0 || codes[count - 1] == range.last) break;
    range.first = codes[count - 1] + 1;
  }
  return count;
}

}  // namespace headrace::index
