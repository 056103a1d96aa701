// Numbers of a table's rows that are in the window of batches: the row's own where a table has few
// rows, else the place of its id in a hash table.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::embedding {

// Rows of a table up to which there is a number for each; of more, of which few may be used, for
// these alone.
inline constexpr std::uint64_t kMostNumbered = std::uint64_t{1} << 27;

// 64-bit ids to 32-bit numbers from 0 on, which are used again after an id is erased. Linear
// probing at half load; the entries behind an erased one move up, so that no marks are left behind.
class IdNumbers {
 public:
  void prefetch(std::uint64_t id) const { __builtin_prefetch(&entries_[home(id)], 1); }
  void prefetch_id(std::uint32_t number) const { __builtin_prefetch(&ids_[number]); }

  // The id's number if it lies where it is looked up first, else kNone.
  std::uint32_t likely(std::uint64_t id) const {
    const auto& entry = entries_[home(id)];
    return entry.id == id ? entry.number : kNone;
  }

  // The id's number; a new one where it has none.
  std::uint32_t find_or_insert(std::uint64_t id) {
    auto place = home(id);
    for (; entries_[place].number != kNone; place = next(place)) {
      if (entries_[place].id == id) return entries_[place].number;
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
    entries_[place] = {id, number};
    if (2 * (ids_.size() - free_.size()) > entries_.size()) grow();
    return number;
  }

  void erase(std::uint32_t number) {
    auto hole = home(ids_[number]);
    while (entries_[hole].number != number) hole = next(hole);
    for (auto place = next(hole); entries_[place].number != kNone; place = next(place)) {
      // An entry may move to the hole unless its home lies behind the hole.
      const auto distance = (place - home(entries_[place].id)) & (entries_.size() - 1);
      if (distance >= ((place - hole) & (entries_.size() - 1))) {
        entries_[hole] = entries_[place];
        hole = place;
      }
    }
    entries_[hole].number = kNone;
    free_.push_back(number);
  }

  std::uint64_t id(std::uint32_t number) const { return ids_[number]; }
  // Above all numbers.
  std::size_t bound() const { return ids_.size(); }

  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

 private:
  // The id beside its number: a search reads one place of memory.
  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t number = kNone;
  };
  using Entries = std::vector<Entry, HugePages<Entry>>;

  // Multiplication by the golden ratio spreads consecutive ids (Knuth, 6.4).
  std::size_t home(std::uint64_t id) const {
    return static_cast<std::size_t>((id * 0x9e3779b97f4a7c15U) >> shift_);
  }
  std::size_t next(std::size_t place) const { return (place + 1) & (entries_.size() - 1); }

  void grow() {
    auto entries = Entries(2 * entries_.size());
    entries.swap(entries_);
    --shift_;
    for (const auto& entry : entries) {
      if (entry.number == kNone) continue;
      auto place = home(entry.id);
      while (entries_[place].number != kNone) place = next(place);
      entries_[place] = entry;
    }
  }

  Entries entries_ = Entries(1024);
  int shift_ = 64 - std::countr_zero(std::size_t{1024});
  std::vector<std::uint64_t> ids_;
  std::vector<std::uint32_t> free_;
};

}  // namespace headrace::embedding
