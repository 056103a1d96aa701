// Numbers of a table's rows that are in the window of batches: the row's own where a table has a
// fixed number of rows, else the place of its id in a hash table.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::embedding {

// 64-bit ids to 32-bit numbers from 0 on, which are used again after an id is erased. Linear
// probing at half load; the entries behind an erased one move up, so that no marks are left behind.
class IdNumbers {
 public:
  void prefetch(std::uint64_t id) const { __builtin_prefetch(&places_[home(id)], 1); }

  // The id's number; a new one where it has none.
  std::uint32_t find_or_insert(std::uint64_t id) {
    auto place = home(id);
    for (; places_[place] != kEmpty; place = next(place)) {
      if (ids_[places_[place]] == id) return places_[place];
    }
    std::uint32_t number;
    if (free_.empty()) {
      number = static_cast<std::uint32_t>(ids_.size());
      ids_.push_back(id);
    } else {
      number = free_.back();
      free_.pop_back();
      ids_[number] = id;
    }
    places_[place] = number;
    if (2 * (ids_.size() - free_.size()) > places_.size()) grow();
    return number;
  }

  void erase(std::uint32_t number) {
    auto hole = home(ids_[number]);
    while (places_[hole] != number) hole = next(hole);
    for (auto place = next(hole); places_[place] != kEmpty; place = next(place)) {
      // An entry may move to the hole unless its home lies behind the hole.
      const auto distance = (place - home(ids_[places_[place]])) & (places_.size() - 1);
      if (distance >= ((place - hole) & (places_.size() - 1))) {
        places_[hole] = places_[place];
        hole = place;
      }
    }
    places_[hole] = kEmpty;
    free_.push_back(number);
  }

  std::uint64_t id(std::uint32_t number) const { return ids_[number]; }
  // Above all numbers.
  std::size_t bound() const { return ids_.size(); }

 private:
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};

  // Multiplication by the golden ratio spreads consecutive ids (Knuth, 6.4).
  std::size_t home(std::uint64_t id) const {
    return static_cast<std::size_t>((id * 0x9e3779b97f4a7c15U) >> shift_);
  }
  std::size_t next(std::size_t place) const { return (place + 1) & (places_.size() - 1); }

  void grow() {
    auto numbers = std::vector<std::uint32_t>(2 * places_.size(), kEmpty);
    numbers.swap(places_);
    --shift_;
    for (auto number : numbers) {
      if (number == kEmpty) continue;
      auto place = home(ids_[number]);
      while (places_[place] != kEmpty) place = next(place);
      places_[place] = number;
    }
  }

  std::vector<std::uint32_t> places_ = std::vector<std::uint32_t>(1024, kEmpty);
  int shift_ = 64 - std::countr_zero(std::size_t{1024});
  std::vector<std::uint64_t> ids_;
  std::vector<std::uint32_t> free_;
};

}  // namespace headrace::embedding
