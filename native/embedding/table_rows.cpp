#include "embedding/table_rows.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace headrace::embedding {

HashedRows::HashedRows(RowChunks& chunks) : pieces_(chunks), row_bytes_(chunks.row_bytes()) {
  const Budgeted<Bucket> allocator(chunks.budget());
  for (int i = 0; i < 1 << kSectionBits; ++i) {
    sections_.push_back({BudgetedVector<Bucket>(1, Bucket{}, allocator)});
  }
}

std::size_t HashedRows::bucket_of(std::uint64_t hash, std::size_t buckets) {
  // The bits behind the section's, as a fraction, times the buckets: any number of these will do.
  const auto fraction = (hash << kSectionBits) >> 32;
  return static_cast<std::size_t>((fraction * buckets) >> 32);
}

HashedRows::Home HashedRows::home(std::int64_t id) const {
  const auto h = hash(id);
  const auto& section = sections_[h >> (64 - kSectionBits)];
  return {&section, bucket_of(h, section.buckets.size()), static_cast<std::uint8_t>(h)};
}

unsigned HashedRows::matches(const Bucket& bucket, std::uint8_t tag) {
  const auto present = (1U << bucket.size) - 1;
#ifdef __SSE2__
  const auto tags = _mm_load_si128(reinterpret_cast<const __m128i*>(bucket.tags.data()));
  const auto equal = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
  return static_cast<unsigned>(_mm_movemask_epi8(equal)) & present;
#else
  unsigned equal = 0;
  for (std::size_t i = 0; i < kSlots; ++i) {
    equal |= static_cast<unsigned>(bucket.tags[i] == tag) << i;
  }
  return equal & present;
#endif
}

std::byte* HashedRows::search(std::int64_t id, const Home& home) const {
  const auto& buckets = home.section->buckets;
  for (auto at = home.bucket;; at = at + 1 == buckets.size() ? 0 : at + 1) {
    const auto& bucket = buckets[at];
    for (auto equal = matches(bucket, home.tag); equal != 0; equal &= equal - 1) {
      auto* row = pieces_.row(bucket.numbers[static_cast<std::size_t>(std::countr_zero(equal))]);
      if (has_id(row, id)) return row + kIdBytes;
    }
    if (bucket.size < kSlots) return nullptr;
  }
}

void HashedRows::locate(Ids ids, RowsOfBlock& rows) const {
  std::array<Home, kBlock> homes;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    homes[i] = home(ids[i]);
    __builtin_prefetch(&homes[i].section->buckets[homes[i].bucket]);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto& bucket = homes[i].section->buckets[homes[i].bucket];
    const auto equal = matches(bucket, homes[i].tag);
    rows[i] = nullptr;
    if (equal == 0) continue;
    // Nearly always the id's row.
    rows[i] = pieces_.row(bucket.numbers[static_cast<std::size_t>(std::countr_zero(equal))]);
    prefetch_row(rows[i], row_bytes_);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (rows[i] != nullptr && has_id(rows[i], ids[i])) {
      rows[i] += kIdBytes;
    } else {
      rows[i] = search(ids[i], homes[i]);
    }
  }
}

std::byte* HashedRows::create(std::int64_t id) {
  if (size_ == std::numeric_limits<std::uint32_t>::max()) {
    throw MemoryExhausted("a table has 2^32 - 1 rows at one server, the most that it may have");
  }
  const auto h = hash(id);
  auto& section = sections_[h >> (64 - kSectionBits)];
  // Each bucket with 9.6 numbers on average: 26% are full then, and 1 of 15 rows lies behind one.
  if (5 * (section.size + 1) > 4 * kSlots * section.buckets.size()) grow(section);
  pieces_.reserve(size_);
  auto* row = pieces_.row(size_);
  std::memcpy(row, &id, kIdBytes);
  insert(section.buckets, h, static_cast<std::uint32_t>(size_));
  ++section.size;
  ++size_;
  return row + kIdBytes;
}

void HashedRows::insert(BudgetedVector<Bucket>& buckets, std::uint64_t hash, std::uint32_t number) {
  auto at = bucket_of(hash, buckets.size());
  while (buckets[at].size == kSlots) at = at + 1 == buckets.size() ? 0 : at + 1;
  auto& bucket = buckets[at];
  bucket.tags[bucket.size] = static_cast<std::uint8_t>(hash);
  bucket.numbers[bucket.size] = number;
  ++bucket.size;
}

void HashedRows::grow(Section& section) {
  // By half: with twice the buckets, both the old and the new ones would be more than the bound on
  // memory beside the rows leaves.
  auto count = section.buckets.size() + (section.buckets.size() + 1) / 2;
  // Large ones are in whole huge pages.
  constexpr auto kPageBuckets = kHugePage / sizeof(Bucket);
  if (count > kPageBuckets) count = (count + kPageBuckets - 1) / kPageBuckets * kPageBuckets;
  BudgetedVector<Bucket> buckets(count, Bucket{}, section.buckets.get_allocator());
  for (std::size_t at = 0; at < section.buckets.size(); ++at) {
    // Rows lie in no order: those of the bucket two ahead are on their way meanwhile.
    if (at + 2 < section.buckets.size()) {
      const auto& ahead = section.buckets[at + 2];
      for (std::size_t i = 0; i < ahead.size; ++i)
        __builtin_prefetch(pieces_.row(ahead.numbers[i]));
    }
    const auto& bucket = section.buckets[at];
    for (std::size_t i = 0; i < bucket.size; ++i) {
      insert(buckets, hash(id(bucket.numbers[i])), bucket.numbers[i]);
    }
  }
  section.buckets.swap(buckets);
}

std::int64_t HashedRows::id(std::size_t number) const {
  std::int64_t id = 0;
  std::memcpy(&id, pieces_.row(number), kIdBytes);
  return id;
}

std::size_t HashedRows::bytes() const {
  auto bytes = pieces_.bytes();
  for (const auto& section : sections_) bytes += section.buckets.capacity() * sizeof(Bucket);
  return bytes;
}

DenseRows::DenseRows(RowChunks& chunks, const ShardRule& rule, std::uint64_t places)
    : chunks_(chunks),
      rule_(rule),
      places_(places),
      parts_((places + kPart - 1) / kPart, Budgeted<std::unique_ptr<Part>>(chunks.budget())) {}

DenseRows::Place DenseRows::place_of(std::int64_t id) const {
  const auto place = rule_.place(static_cast<std::uint64_t>(id));
  return {parts_[place >> kPartShift].get(), place & (kPart - 1)};
}

std::byte* DenseRows::row(const Place& place) {
  const std::size_t number = place.part == nullptr ? 0 : place.part->numbers[place.place];
  return number == 0 ? nullptr : place.part->pieces.row(number - 1);
}

void DenseRows::locate(Ids ids, RowsOfBlock& rows) const {
  std::array<Place, kBlock> places;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    places[i] = place_of(ids[i]);
    if (places[i].part != nullptr) __builtin_prefetch(&places[i].part->numbers[places[i].place]);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    rows[i] = row(places[i]);
    if (rows[i] != nullptr) prefetch_row(rows[i], chunks_.row_bytes());
  }
}

std::byte* DenseRows::create(std::int64_t id) {
  const auto place = rule_.place(static_cast<std::uint64_t>(id));
  auto& part = parts_[place >> kPartShift];
  if (part == nullptr) {
    part = std::make_unique<Part>(chunks_,
                                  std::min<std::uint64_t>(kPart, places_ - (place & ~(kPart - 1))));
  }
  part->pieces.reserve(part->size);
  auto* row = part->pieces.row(part->size);
  part->numbers[place & (kPart - 1)] = ++part->size;
  ++size_;
  return row;
}

std::size_t DenseRows::bytes() const {
  auto bytes = parts_.capacity() * sizeof(std::unique_ptr<Part>);
  for (const auto& part : parts_) {
    if (part == nullptr) continue;
    bytes += sizeof(Part) + part->numbers.capacity() * sizeof(std::uint16_t) + part->pieces.bytes();
  }
  return bytes;
}

std::vector<std::uint64_t> DenseRows::places_from(std::uint64_t place, std::size_t most) const {
  std::vector<std::uint64_t> places;
  for (auto p = place >> kPartShift; p < parts_.size() && places.size() < most; ++p) {
    if (parts_[p] == nullptr) continue;
    const auto& numbers = parts_[p]->numbers;
    const auto first = p << kPartShift;
    for (auto i = place > first ? place - first : 0; i < numbers.size() && places.size() < most;
         ++i) {
      if (numbers[i] != 0) places.push_back(first + i);
    }
  }
  return places;
}

}  // namespace headrace::embedding
