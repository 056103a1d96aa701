// Rows by the server that has them, and back in one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "embedding/hash.hpp"

namespace headrace::embedding {

// Of `shards` consecutive ids, from a multiple of `shards` on, each server has one, in an order
// that is turned by a hash. So the ids of a server are spread, whatever pattern the frequent ones
// have, and a table with a fixed number of rows stays one at every server: the id's number there is
// its `place`.
class ShardRule {
 public:
  explicit ShardRule(std::size_t shards) : shards_(shards) {}

  std::size_t shards() const { return shards_; }
  std::uint64_t place(std::uint64_t id) const { return shards_ == 1 ? id : id / shards_; }
  std::size_t shard(std::uint64_t id) const {
    if (shards_ == 1) return 0;
    const auto place = id / shards_;
    const auto turned = id - place * shards_ + turn(place);
    return turned >= shards_ ? turned - shards_ : turned;
  }
  std::uint64_t id(std::size_t shard, std::uint64_t place) const {
    if (shards_ == 1) return place;
    const auto turned = shard + shards_ - turn(place);
    return place * shards_ + (turned >= shards_ ? turned - shards_ : turned);
  }
  // Places of a table of so many rows, at the server with most of them.
  std::uint64_t places(std::uint64_t rows) const {
    return rows / shards_ + (rows % shards_ == 0 ? 0 : 1);
  }

 private:
  std::uint64_t turn(std::uint64_t place) const { return mix(place) % shards_; }

  std::uint64_t shards_;
};

// Rows of a group of tables by server, a table's together and in the order that they came in.
struct ShardedRows {
  // [shards * tables]: where the rows of a table end, among those of a server.
  std::vector<std::int64_t> ends;
  // [shards + 1]: the first row of each server in the columns below, and the end.
  std::vector<std::int64_t> first;
  // [rows]: the ids, and their places in the order that they came in.
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> places;
};

// `ends`: of each table's ids. Throws std::invalid_argument.
ShardedRows split_rows(const ShardRule& rule, std::span<const std::int64_t> ids,
                       std::span<const std::int64_t> ends);

// Copies row `places[i]` of `rows` to row i of `out`, and row i of `rows` to row `places[i]`. The
// smaller of both has a row for each place. Throw std::invalid_argument where a place is outside.
void gather_rows(std::span<const std::uint32_t> places, std::span<const std::byte> rows,
                 std::span<std::byte> out);
void scatter_rows(std::span<const std::uint32_t> places, std::span<const std::byte> rows,
                  std::span<std::byte> out);

// Throws std::invalid_argument unless these are ends of `tables` tables' rows, `rows` in all.
void check_ends(std::span<const std::int64_t> ends, std::size_t tables, std::size_t rows);

}  // namespace headrace::embedding
