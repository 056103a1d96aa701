// Rows of one table, found by their ids. Both kinds have the same interface: `locate` and `find`
// for readers, `create` for one writer at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "embedding/hash.hpp"
#include "embedding/row_memory.hpp"
#include "embedding/shards.hpp"

namespace headrace::embedding {

using Ids = std::span<const std::int64_t>;

// Ids that are located together: enough that memory accesses overlap, few enough that rows stay in
// the processor's first caches until they are copied.
inline constexpr std::size_t kBlock = 128;
using RowsOfBlock = std::array<std::byte*, kBlock>;

inline void prefetch_row(const std::byte* row, std::size_t bytes) {
  // More lines than this follow by the processor's own prefetching.
  constexpr std::size_t kMost = 8;
  constexpr std::size_t kLine = 64;
  for (std::size_t line = 0; line < kMost && line * kLine < bytes; ++line) {
    __builtin_prefetch(row + line * kLine);
  }
}

// Rows whose ids are hashes. Each has its id before its numbers; an index of 64-byte buckets leads
// from a hash to up to 12 numbers of rows, with 8 further bits of the hash of each. A row lies in
// the first bucket from its home on that had room, so a search ends at a bucket with room. There
// are several sections, by the hash, so that no growth stops the table for long; few enough that
// those of large tables lie in huge pages (measured: lookups take 1.8 times as long without).
//
// Memory beside the numbers: 8 bytes of id, and 64 / 12 / load of index: at loads of 0.53 to 0.80
// 6.7 to 10 bytes, and 13.3 at most, where a section has just grown into a second huge page.
class HashedRows {
 public:
  static constexpr std::size_t kIdBytes = sizeof(std::int64_t);

  // `chunks`: of rows with `kIdBytes` more.
  explicit HashedRows(RowChunks& chunks);

  // Sets each id's row, null where it has none.
  void locate(Ids ids, RowsOfBlock& rows) const;
  std::byte* find(std::int64_t id) const { return search(id, home(id)); }
  // A row of zeros for an id that has none. Throws std::bad_alloc, with everything as it was.
  std::byte* create(std::int64_t id);

  std::size_t size() const { return size_; }
  std::size_t bytes() const;
  std::int64_t id(std::size_t number) const;

 private:
  static constexpr std::size_t kSlots = 12;
  static constexpr int kSectionBits = 4;

  struct alignas(64) Bucket {
    std::array<std::uint8_t, 15> tags{};  // the first `kSlots` count
    std::uint8_t size = 0;
    std::array<std::uint32_t, kSlots> numbers{};
  };
  static_assert(sizeof(Bucket) == 64);
  struct Section {
    BudgetedVector<Bucket> buckets;
    std::size_t size = 0;
  };
  struct Home {
    const Section* section;
    std::size_t bucket;
    std::uint8_t tag;
  };

  static std::uint64_t hash(std::int64_t id) { return mix(static_cast<std::uint64_t>(id)); }
  // Bits of the hash from the top on choose the section, then the bucket; the last ones are the
  // tag.
  static std::size_t bucket_of(std::uint64_t hash, std::size_t buckets);
  Home home(std::int64_t id) const;
  static unsigned matches(const Bucket& bucket, std::uint8_t tag);
  std::byte* search(std::int64_t id, const Home& home) const;
  bool has_id(const std::byte* row, std::int64_t id) const {
    return std::memcmp(row, &id, kIdBytes) == 0;
  }
  void grow(Section& section);
  static void insert(BudgetedVector<Bucket>& buckets, std::uint64_t hash, std::uint32_t number);

  RowPieces pieces_;
  std::size_t row_bytes_;
  std::vector<Section> sections_;
  std::size_t size_ = 0;
};

// Rows of a table with a fixed number of ids. Ids of 4096 consecutive places (`ShardRule`) have
// rows of their own, in the order of creation, with a number of 2 bytes for each place: where all
// rows exist, memory beside them is 2 bytes and an eighth for each.
class DenseRows {
 public:
  DenseRows(RowChunks& chunks, const ShardRule& rule, std::uint64_t places);

  void locate(Ids ids, RowsOfBlock& rows) const;
  std::byte* find(std::int64_t id) const { return row(place_of(id)); }
  std::byte* create(std::int64_t id);

  std::size_t size() const { return size_; }
  std::size_t bytes() const;
  // Up to `most` places with rows, rising, from `place` on.
  std::vector<std::uint64_t> places_from(std::uint64_t place, std::size_t most) const;

 private:
  static constexpr int kPartShift = 12;
  static constexpr std::size_t kPart = std::size_t{1} << kPartShift;

  struct Part {
    Part(RowChunks& chunks, std::size_t places)
        : numbers(places, 0, Budgeted<std::uint16_t>(chunks.budget())), pieces(chunks) {
      pieces.expect(places);
    }
    BudgetedVector<std::uint16_t> numbers;  // from 1 on; 0: no row
    RowPieces pieces;
    std::uint16_t size = 0;
  };
  struct Place {
    const Part* part;  // null: no row is in it
    std::size_t place;
  };

  Place place_of(std::int64_t id) const;
  static std::byte* row(const Place& place);

  RowChunks& chunks_;
  ShardRule rule_;
  std::uint64_t places_;
  BudgetedVector<std::unique_ptr<Part>> parts_;
  std::size_t size_ = 0;
};

}  // namespace headrace::embedding
