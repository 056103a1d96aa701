// Which rows of a table are in use: each has one owner at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::index {

// Numbers in runs of consecutive ones.
class NumberSet {
 public:
  std::size_t size() const { return size_; }

  // Adds `first` to below `end`, of which none is in the set.
  void add(std::int64_t first, std::int64_t end) {
    if (first == end) return;
    auto after = runs_.lower_bound(first);
    const bool joins_after = after != runs_.end() && after->first == end;
    if (after != runs_.begin() && std::prev(after)->second == first) {
      std::prev(after)->second = joins_after ? after->second : end;
      if (joins_after) runs_.erase(after);
    } else {
      runs_.emplace_hint(after, first, joins_after ? after->second : end);
      if (joins_after) runs_.erase(after);
    }
    size_ += static_cast<std::size_t>(end - first);
  }

  // False: the number is not in the set.
  bool remove(std::int64_t number) {
    auto run = runs_.upper_bound(number);
    if (run == runs_.begin() || (--run)->second <= number) return false;
    const auto end = run->second;
    if (number + 1 < end) runs_.emplace_hint(std::next(run), number + 1, end);
    if (run->first == number) {
      runs_.erase(run);
    } else {
      run->second = number;
    }
    --size_;
    return true;
  }

  // Removes the numbers directly below `end`. Returns the least of them, or `end`.
  std::int64_t trim(std::int64_t end) {
    if (runs_.empty() || std::prev(runs_.end())->second != end) return end;
    const auto run = std::prev(runs_.end());
    const auto first = run->first;
    size_ -= static_cast<std::size_t>(end - first);
    runs_.erase(run);
    return first;
  }

  // Moves the least numbers, at most `count`, to the end of `numbers`, which has room for them.
  void take(std::size_t count, std::vector<std::int64_t>& numbers) {
    while (count > 0 && !runs_.empty()) {
      auto run = runs_.extract(runs_.begin());
      for (; count > 0 && run.key() < run.mapped(); --count, --size_)
        numbers.push_back(run.key()++);
      if (run.key() < run.mapped()) runs_.insert(std::move(run));
    }
  }

 private:
  std::map<std::int64_t, std::int64_t> runs_;  // from the first to below the second
  std::size_t size_ = 0;
};

// A row is free, or in use, or retired: no longer in use, but other threads may still read it. Not
// for several threads at once.
class RowNumbers {
 public:
  RowNumbers() = default;
  // In use are these rows, in any order. Throws std::invalid_argument if one is negative or appears
  // twice.
  explicit RowNumbers(std::vector<std::int64_t> used) {
    std::sort(used.begin(), used.end());
    for (const auto row : used) {
      if (row < 0 || row >= kMostRows) {
        throw std::invalid_argument("row " + std::to_string(row) + " is out of range, needs 0 to " +
                                    std::to_string(kMostRows - 1));
      }
      if (row < end_) throw std::invalid_argument("row " + std::to_string(row) + " appears twice");
      free_.add(end_, row);
      end_ = row + 1;
    }
  }

  // One more than the largest row that is in use or retired.
  std::int64_t end() const { return end_; }
  std::size_t free() const { return free_.size(); }
  std::size_t retired() const { return retired_.size(); }

  // Returns `count` rows, which are in use from now on: the least free ones, then new ones.
  std::vector<std::int64_t> take(std::size_t count) {
    std::vector<std::int64_t> rows;
    rows.reserve(count);
    free_.take(count, rows);
    while (rows.size() < count) rows.push_back(end_++);
    return rows;
  }

  // Makes rows free that were taken, and that no caller has seen.
  void give_back(const std::int64_t* rows, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) free_.add(rows[i], rows[i] + 1);
    end_ = free_.trim(end_);
  }

  void retire(std::int64_t row) { retired_.add(row, row + 1); }

  // Makes retired rows free. Throws std::invalid_argument, and changes nothing, if one is not
  // retired.
  void release(const std::int64_t* rows, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      if (retired_.remove(rows[i])) continue;
      for (std::size_t k = 0; k < i; ++k) retired_.add(rows[k], rows[k] + 1);
      throw std::invalid_argument("row " + std::to_string(rows[i]) +
                                  " is not retired: needs rows that `erase` has returned, each "
                                  "once");
    }
    give_back(rows, count);
  }

 private:
  static constexpr std::int64_t kMostRows = std::int64_t{1} << 62;

  NumberSet free_;
  NumberSet retired_;
  std::int64_t end_ = 0;
};

}  // namespace headrace::index
