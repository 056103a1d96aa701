// The values of a batch of codes, of which those that are not in the map are inserted: of ids and
// the rows that they have in a table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::index {

// Values that new codes take in the order in which they first appear: an array of them.
template <class Value>
class ArraySource {
 public:
  ArraySource(const Value* values, std::size_t count) : values_(values), count_(count) {}

  // Throws std::invalid_argument if there are fewer values than codes that are not in the map.
  void reserve(const std::uint64_t* codes, const bool* found, std::size_t count,
               std::size_t absent) const {
    if (absent <= count_) return;
    std::vector<std::uint64_t> missing;
    missing.reserve(absent);
    for (std::size_t i = 0; i < count; ++i) {
      if (!found[i]) missing.push_back(codes[i]);
    }
    std::sort(missing.begin(), missing.end());
    const auto distinct = std::unique(missing.begin(), missing.end()) - missing.begin();
    if (static_cast<std::size_t>(distinct) <= count_) return;
    throw std::invalid_argument("values are " + std::to_string(count_) + ", needs at least " +
                                std::to_string(distinct) + ", one for each new key");
  }

  const Value& next() const { return values_[used_]; }
  void consume() { ++used_; }

 private:
  const Value* values_;
  std::size_t count_;
  std::size_t used_ = 0;
};

// Sets the value of each code, and whether it is new: of equal codes the first is. Returns how many
// are. `source` has members `reserve`, called once if a code is not in the map, `next` and
// `consume`, as ArraySource. An exception of `reserve` changes nothing; one of memory leaves the
// codes before.
//
// `Map` has a batched `get`, and `find_or_insert` of one code, which settles races in a map that
// other threads change meanwhile.
template <class Map, class Value, class Source>
std::size_t find_or_insert(Map& map, const std::uint64_t* codes, std::size_t count, Value* values,
                           bool* is_new, Source& source) {
  const auto present = map.get(codes, count, values, is_new);
  if (present < count) source.reserve(codes, is_new, count, count - present);
  std::size_t inserted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    is_new[i] = !is_new[i] && map.find_or_insert(codes[i], source.next(), values[i]);
    if (!is_new[i]) continue;
    source.consume();
    ++inserted;
  }
  return inserted;
}

}  // namespace headrace::index
