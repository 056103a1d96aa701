// Rows of variable length: row i is item[first[i]] to item[first[i + 1] - 1].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

struct Rows {
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> item;

  std::span<const std::int32_t> operator[](std::size_t i) const {
    return {item.data() + first[i], static_cast<std::size_t>(first[i + 1] - first[i])};
  }
  std::size_t size() const { return first.size() - 1; }
  void close() { first.push_back(static_cast<std::int64_t>(item.size())); }
};

}  // namespace headrace
