#include "embedding/shards.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace headrace::embedding {

namespace {

// Rows ahead of the one that is copied whose places are read from memory.
constexpr std::size_t kAhead = 16;

// Bytes of a row, where `listed` bytes are one for each place, and places lie within `all` bytes.
std::size_t bytes_of_row(std::span<const std::uint32_t> places, std::size_t listed,
                         std::size_t all) {
  if (places.empty()) return 0;
  const auto row_bytes = listed / places.size();
  const auto last = *std::max_element(places.begin(), places.end());
  if (listed % places.size() != 0 || (last + std::size_t{1}) * row_bytes > all) {
    throw std::invalid_argument("places of rows are up to " + std::to_string(last) + ", and " +
                                std::to_string(listed) + " of " + std::to_string(all) +
                                " bytes are copied: need rows of one size");
  }
  return row_bytes;
}

}  // namespace

void check_ends(std::span<const std::int64_t> ends, std::size_t tables, std::size_t rows) {
  if (ends.size() == tables && std::is_sorted(ends.begin(), ends.end()) &&
      (tables == 0 || ends.front() >= 0) &&
      (tables == 0 ? 0 : ends.back()) == static_cast<std::int64_t>(rows)) {
    return;
  }
  throw std::invalid_argument("ends need one number for each of " + std::to_string(tables) +
                              " tables, rising to the " + std::to_string(rows) + " ids");
}

ShardedRows split_rows(const ShardRule& rule, std::span<const std::int64_t> ids,
                       std::span<const std::int64_t> ends) {
  const auto tables = ends.size();
  const auto shards = rule.shards();
  check_ends(ends, tables, ids.size());
  if (ids.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument("rows of one call are " + std::to_string(ids.size()) +
                                ", needs less than 2^32");
  }
  ShardedRows split;
  split.ends.resize(shards * tables);
  split.first.resize(shards + 1);
  split.ids.resize(ids.size());
  split.places.resize(ids.size());
  std::vector<std::uint32_t> shard_of(ids.size());
  std::vector<std::int64_t> counts(shards);
  std::size_t row = 0;
  for (std::size_t table = 0; table < tables; ++table) {
    for (; row < static_cast<std::size_t>(ends[table]); ++row) {
      shard_of[row] = static_cast<std::uint32_t>(rule.shard(static_cast<std::uint64_t>(ids[row])));
      ++counts[shard_of[row]];
    }
    for (std::size_t shard = 0; shard < shards; ++shard) {
      split.ends[shard * tables + table] = counts[shard];
    }
  }
  for (std::size_t shard = 0; shard < shards; ++shard) {
    split.first[shard + 1] = split.first[shard] + counts[shard];
  }
  auto next = split.first;
  for (row = 0; row < ids.size(); ++row) {
    const auto to = static_cast<std::size_t>(next[shard_of[row]]++);
    split.ids[to] = ids[row];
    split.places[to] = static_cast<std::uint32_t>(row);
  }
  return split;
}

void gather_rows(std::span<const std::uint32_t> places, std::span<const std::byte> rows,
                 std::span<std::byte> out) {
  const auto row_bytes = bytes_of_row(places, out.size(), rows.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i + kAhead < places.size()) {
      __builtin_prefetch(rows.data() + places[i + kAhead] * row_bytes);
    }
    std::memcpy(out.data() + i * row_bytes, rows.data() + places[i] * row_bytes, row_bytes);
  }
}

void scatter_rows(std::span<const std::uint32_t> places, std::span<const std::byte> rows,
                  std::span<std::byte> out) {
  const auto row_bytes = bytes_of_row(places, rows.size(), out.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::memcpy(out.data() + places[i] * row_bytes, rows.data() + i * row_bytes, row_bytes);
  }
}

}  // namespace headrace::embedding
