// Leaf placed by a minimal perfect hash: entries stand at their code's position; those inserted
// later stand in a write buffer until it is full, and the leaf is built again with them.
//
// Lines of a leaf: header (the function's constants in the first line; then what only changes and
// the buffer need), the function's tables, blocks of codes and values (from the line that the
// leaf's word has as its size), ranks (the positions in the order of their codes, so that scans
// and the next construction do not sort), and the buffer. A lookup reads the header, one pilot and
// one block, and the buffer's group of the code only if the code is not at its position.
//
// The buffer is a small hash table: groups of eight entries, whose one-byte fingerprints are one
// word. A code's entry is in its group, or in a later one if all groups before are full.
//
// An erased entry's code is overwritten by `empty`, a code that cannot be in this leaf (Word).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "index/leaves/perfect_build.hpp"
#include "index/leaves/perfect_hash.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

namespace perfect {

struct alignas(kLineBytes) Header {
  PerfectHash function;
  std::uint32_t lines;                                           // of the leaf
  std::uint32_t live;                                            // entries at their positions
  std::uint32_t buffered;                                        // entries of the buffer
  std::uint32_t groups;                                          // of the buffer
  std::uint32_t ranks_at, fingerprints_at, codes_at, values_at;  // bytes
};
static_assert(sizeof(Header) == 2 * kLineBytes);

// Codes and values side by side in blocks of one line (of more if a value is larger).
template <class Value>
struct Block {
  static constexpr std::size_t kValueBytes = value_bytes<Value>;
  static constexpr std::size_t values_at(std::size_t entries) {
    auto align = kValueBytes == 0 ? 1 : alignof(Value);
    return (8 * entries + align - 1) / align * align;
  }
  static constexpr std::size_t most_entries() {
    std::size_t entries = 8;
    while (entries > 1 && values_at(entries) + entries * kValueBytes > kLineBytes) --entries;
    return entries;
  }
  static constexpr std::uint32_t kEntries = most_entries();
  static constexpr std::size_t kValuesAt = values_at(kEntries);
  static constexpr std::size_t kLines =
      (kValuesAt + kEntries * kValueBytes + kLineBytes - 1) / kLineBytes;
};

// Bytes of a word that are equal to `byte`, as their highest bits; bits above the first true one
// may be false.
inline std::uint64_t equal_bytes(std::uint64_t word, std::uint8_t byte) {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  auto difference = word ^ kOnes * byte;
  return (difference - kOnes) & ~difference & kOnes << 7;
}

constexpr std::uint8_t kFree = 0;
constexpr std::uint8_t kErased = 1;  // free, but later groups may have codes of this one
constexpr std::uint32_t kMostGroups = 128;
constexpr std::uint32_t kMostBuffered = kMostGroups * 7;

}  // namespace perfect

// Entries that a leaf is to be made of: its function is found and its size known before memory is
// taken, so that a failure changes nothing.
template <class Value, class Allocator = std::allocator<std::byte>>
class PerfectDraft {
 public:
  // Ascending codes, at most 65,536 of them. Throws std::bad_alloc.
  explicit PerfectDraft(const Entries<Value>& entries, const Allocator& allocator = {})
      : entries_(entries), made_(function(entries, allocator)) {
    using Block = perfect::Block<Value>;
    auto count = static_cast<std::uint32_t>(entries.count);
    header_.function = made_.function;
    header_.live = count;
    header_.groups = std::clamp(count / 56 + 1, 2U, perfect::kMostGroups);
    units_ = static_cast<std::uint32_t>(2 + (made_.tables.size() + kLineBytes - 1) / kLineBytes);
    auto blocks = std::max<std::size_t>(1, (entries.count + Block::kEntries - 1) / Block::kEntries);
    auto end = (units_ + blocks * Block::kLines) * kLineBytes;
    auto part = [&end](std::size_t bytes) {
      auto begin = end;
      end += (bytes + 15) / 16 * 16;
      return static_cast<std::uint32_t>(begin);
    };
    header_.ranks_at = part(2 * entries.count);
    header_.fingerprints_at = part(8 * header_.groups);
    header_.codes_at = part(64 * header_.groups);
    header_.values_at = part(8 * value_bytes<Value> * header_.groups);
    header_.lines = static_cast<std::uint32_t>((end + kLineBytes - 1) / kLineBytes);
  }

  std::size_t lines() const { return header_.lines; }
  std::uint32_t units() const { return units_; }  // of the leaf's word

  // Writes the leaf to lines() lines that no reader can see yet; `word` leads to them.
  void write(Word word) const;

 private:
  // A leaf without entries has one position, whose entry is empty.
  static PerfectTables<Allocator> function(const Entries<Value>& entries,
                                           const Allocator& allocator) {
    if (entries.count > 0) return build_perfect_hash(entries.codes, entries.count, {}, allocator);
    PerfectHash none{{{{0, 0}, {0, 0}}, 1, 2}, 0, 1, 0, 0, 0};
    return {none, perfect::Vector<std::byte, Allocator>(none.table_bytes(), allocator)};
  }

  Entries<Value> entries_;
  PerfectTables<Allocator> made_;
  perfect::Header header_{};
  std::uint32_t units_ = 0;
};

// A leaf in its lines. Changes must be made by one thread at a time.
template <class Value, class Sharing = Exclusive>
class PerfectLeaf {
  using Block = perfect::Block<Value>;
  using Header = perfect::Header;

 public:
  explicit PerfectLeaf(Word word)
      : lines_(word.to()), blocks_(word.to() + word.units()), empty_(word.empty_code()) {}

  static std::size_t lines(Word word) { return word.to<Header>()->lines; }

  // Null if the code is not there.
  const Value* find(std::uint64_t code) const { return place_of(code).value; }
  bool get(std::uint64_t code, Value& out) const {
    auto place = place_of(code);
    if (place.code != nullptr) Sharing::load_value(place.value, out);
    return place.code != nullptr;
  }
  const void* home(std::uint64_t code) const {
    return at(header().function.position(code, tables())).code;
  }

  bool update(std::uint64_t code, const Value& value) const {
    auto place = place_of(code);
    if (place.code != nullptr) Sharing::store_value(place.value, value);
    return place.code != nullptr;
  }
  // full: nothing was changed, the leaf has to be built again.
  Outcome insert(std::uint64_t code, const Value& value, bool assign) const;
  Outcome erase(std::uint64_t code) const;

  std::size_t count() const { return std::size_t{header().live} + header().buffered; }
  // At least count(), also while it changes.
  std::size_t capacity() const {
    return header().function.codes + std::size_t{8} * header().groups;
  }
  bool max(std::uint64_t& code) const;  // false: no entries

  // Appends at most `most` entries with codes of at least `from`, ascending.
  void scan(std::uint64_t from, std::size_t most, EntryBuffer<Value>& to) const;
  void gather(std::uint64_t from, EntryBuffer<Value>& to) const { scan(from, capacity(), to); }
  // f(code, value) in ascending order.
  template <class F>
  void for_each(F&& f) const {
    Buffered buffered(*this, 0, perfect::kMostBuffered);
    merge(0, buffered, [&f](const Place& place) {
      f(*place.code, load_value(place));
      return true;
    });
  }
  // The invariant that does not hold, or null.
  const char* broken() const;

 private:
  template <class, class>
  friend class PerfectDraft;

  struct Place {
    std::uint64_t* code = nullptr;
    Value* value = nullptr;
  };

  // Entries of the buffer from a code on: of all of them the lowest, in order, first.
  struct Buffered {
    struct Entry {
      std::uint64_t code;
      std::uint32_t index;
    };
    std::array<Entry, perfect::kMostGroups * 8> entries;
    std::size_t all = 0;
    std::size_t count = 0;  // in order

    Buffered(const PerfectLeaf& leaf, std::uint64_t from, std::size_t most);
  };

  // Fewer than a quarter of the positions are in use.
  bool sparse() const { return count() < header().function.codes / 4 || count() == 0; }

  Place place_of(std::uint64_t code) const {
    auto hash = perfect::mix(code);
    auto place = at(header().function.position(code, hash, tables()));
    if (Sharing::load(place.code) == code) [[likely]]
      return place;
    return find_buffered(code, hash);
  }
  static Value load_value(const Place& place) {
    Value value{};
    Sharing::load_value(place.value, value);
    return value;
  }
  Header& header() const { return *reinterpret_cast<Header*>(lines_); }
  const std::byte* tables() const { return reinterpret_cast<const std::byte*>(lines_ + 2); }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(lines_); }

  Place at(std::uint32_t position) const {
    auto* block =
        reinterpret_cast<std::byte*>(blocks_ + position / Block::kEntries * Block::kLines);
    auto index = position % Block::kEntries;
    return {reinterpret_cast<std::uint64_t*>(block) + index,
            reinterpret_cast<Value*>(block + Block::kValuesAt) + index};
  }
  Place buffered_at(std::size_t index) const {
    return {reinterpret_cast<std::uint64_t*>(bytes() + header().codes_at) + index,
            reinterpret_cast<Value*>(bytes() + header().values_at) + index};
  }
  std::uint64_t* fingerprints() const {
    return reinterpret_cast<std::uint64_t*>(bytes() + header().fingerprints_at);
  }
  const std::uint16_t* ranks() const {
    return reinterpret_cast<const std::uint16_t*>(bytes() + header().ranks_at);
  }
  std::uint64_t code_of_rank(std::uint32_t rank) const {
    return Sharing::load(at(ranks()[rank]).code);
  }

  static std::uint8_t fingerprint(std::uint64_t hash) {
    auto byte = static_cast<std::uint8_t>(hash);
    return byte > perfect::kErased ? byte : static_cast<std::uint8_t>(byte + 2);
  }
  std::uint32_t group_of(std::uint64_t hash) const {
    return static_cast<std::uint32_t>(perfect::high_product(hash, header().groups));
  }
  std::uint32_t next(std::uint32_t group) const {
    return group + 1 == header().groups ? 0 : group + 1;
  }
  void set_fingerprint(std::size_t index, std::uint8_t byte) const {
    auto* word = fingerprints() + index / 8;
    auto shift = index % 8 * 8;
    Sharing::store(word, (Sharing::load(word) & ~(std::uint64_t{0xff} << shift)) |
                             std::uint64_t{byte} << shift);
  }
  Place find_buffered(std::uint64_t code, std::uint64_t hash) const {
    auto byte = fingerprint(hash);
    auto group = group_of(hash);
    for (std::uint32_t seen = 0; seen < header().groups; ++seen, group = next(group)) {
      auto word = Sharing::load(fingerprints() + group);
      for (auto bits = perfect::equal_bytes(word, byte); bits != 0; bits &= bits - 1) {
        auto place = buffered_at(group * 8 + static_cast<std::size_t>(std::countr_zero(bits)) / 8);
        if (Sharing::load(place.code) == code) return place;
      }
      if (perfect::equal_bytes(word, perfect::kFree) != 0) break;
    }
    return {};
  }

  // First rank whose code is at least `from`; entries that were erased are passed over.
  std::uint32_t lower_rank(std::uint64_t from) const {
    std::uint32_t low = 0;
    auto high = header().function.codes;
    while (low < high) {
      auto middle = low + (high - low) / 2;
      auto present = middle;
      while (present < high && code_of_rank(present) == empty_) ++present;
      if (present < high && code_of_rank(present) < from) {
        low = present + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  // take(place) in ascending order of both until it returns false.
  template <class Take>
  void merge(std::uint32_t rank, const Buffered& buffered, Take&& take) const {
    std::size_t next = 0;
    for (; rank < header().function.codes; ++rank) {
      auto place = at(ranks()[rank]);
      auto code = Sharing::load(place.code);
      if (code == empty_) continue;
      for (; next < buffered.count && buffered.entries[next].code < code; ++next) {
        if (!take(buffered_at(buffered.entries[next].index))) return;
      }
      if (!take(place)) return;
    }
    for (; next < buffered.count; ++next) {
      if (!take(buffered_at(buffered.entries[next].index))) return;
    }
  }

  Line* lines_;
  Line* blocks_;
  std::uint64_t empty_;
};

template <class Value, class Allocator>
void PerfectDraft<Value, Allocator>::write(Word word) const {
  std::construct_at(word.to<perfect::Header>(), header_);
  PerfectLeaf<Value> leaf(word);
  auto* bytes = leaf.bytes();
  std::memcpy(bytes + sizeof(perfect::Header), made_.tables.data(), made_.tables.size());
  auto empty = static_cast<std::byte>(word.empty_code());
  std::fill(bytes + units_ * kLineBytes, bytes + header_.ranks_at, empty);
  auto* ranks = reinterpret_cast<std::uint16_t*>(bytes + header_.ranks_at);
  for (std::size_t i = 0; i < entries_.count; ++i) {
    auto position = made_.position(entries_.codes[i]);
    ranks[i] = static_cast<std::uint16_t>(position);
    auto place = leaf.at(position);
    *place.code = entries_.codes[i];
    if constexpr (value_bytes<Value> != 0) {
      std::memcpy(static_cast<void*>(place.value), entries_.values + i, sizeof(Value));
    }
  }
  std::fill(bytes + header_.fingerprints_at, bytes + header_.lines * kLineBytes, std::byte{0});
}

template <class Value, class Sharing>
Outcome PerfectLeaf<Value, Sharing>::insert(std::uint64_t code, const Value& value,
                                            bool assign) const {
  if (auto place = place_of(code); place.code != nullptr) {
    if (assign) Sharing::store_value(place.value, value);
    return Outcome::present;
  }
  if (header().buffered >= header().groups * 7) return Outcome::full;
  auto hash = perfect::mix(code);
  for (auto group = group_of(hash);; group = next(group)) {
    auto word = Sharing::load(fingerprints() + group);
    auto bits = perfect::equal_bytes(word, perfect::kFree);
    if (bits == 0) bits = perfect::equal_bytes(word, perfect::kErased);
    if (bits == 0) continue;
    auto index = group * 8 + static_cast<std::size_t>(std::countr_zero(bits)) / 8;
    auto place = buffered_at(index);
    Sharing::store(place.code, code);
    Sharing::store_value(place.value, value);
    set_fingerprint(index, fingerprint(hash));
    ++header().buffered;
    return Outcome::done;
  }
}

template <class Value, class Sharing>
Outcome PerfectLeaf<Value, Sharing>::erase(std::uint64_t code) const {
  auto place = place_of(code);
  if (place.code == nullptr) return Outcome::absent;
  auto* codes = buffered_at(0).code;
  if (place.code < codes || place.code >= codes + std::size_t{8} * header().groups) {
    Sharing::store(place.code, empty_);
    --header().live;
  } else {
    // If the group has a free entry, no search continues behind it.
    auto index = static_cast<std::size_t>(place.code - codes);
    auto word = Sharing::load(fingerprints() + index / 8);
    bool last = perfect::equal_bytes(word, perfect::kFree) != 0;
    set_fingerprint(index, last ? perfect::kFree : perfect::kErased);
    --header().buffered;
  }
  return sparse() ? Outcome::sparse : Outcome::done;
}

template <class Value, class Sharing>
PerfectLeaf<Value, Sharing>::Buffered::Buffered(const PerfectLeaf& leaf, std::uint64_t from,
                                                std::size_t most) {
  for (std::uint32_t i = 0; i < leaf.header().groups * 8; ++i) {
    auto byte = Sharing::load(leaf.fingerprints() + i / 8) >> i % 8 * 8 & 0xff;
    if (byte <= perfect::kErased) continue;
    auto code = Sharing::load(leaf.buffered_at(i).code);
    if (code >= from) entries[all++] = {code, i};
  }
  auto lower = [](const Entry& a, const Entry& b) { return a.code < b.code; };
  count = std::min(most, all);
  std::partial_sort(entries.begin(), entries.begin() + count, entries.begin() + all, lower);
}

template <class Value, class Sharing>
void PerfectLeaf<Value, Sharing>::scan(std::uint64_t from, std::size_t most,
                                       EntryBuffer<Value>& to) const {
  if (most == 0) return;
  Buffered buffered(*this, from, most);
  merge(lower_rank(from), buffered, [&](const Place& place) {
    to.append(Sharing::load(place.code), load_value(place));
    return --most > 0;
  });
}

template <class Value, class Sharing>
bool PerfectLeaf<Value, Sharing>::max(std::uint64_t& code) const {
  auto rank = header().function.codes;
  while (rank > 0 && code_of_rank(rank - 1) == empty_) --rank;
  bool found = rank > 0;
  if (found) code = code_of_rank(rank - 1);
  const Buffered buffered(*this, found ? code : 0, 0);
  for (std::size_t i = 0; i < buffered.all; ++i) {
    if (!found || buffered.entries[i].code > code) code = buffered.entries[i].code;
    found = true;
  }
  return found;
}

template <class Value, class Sharing>
const char* PerfectLeaf<Value, Sharing>::broken() const {
  std::size_t seen = 0;
  std::uint64_t before = 0;
  const char* found = nullptr;
  for_each([&](std::uint64_t code, const Value&) {
    if (seen++ > 0 && code <= before) found = "codes are not ascending";
    if (code == empty_) found = "an empty entry is in use";
    auto place = place_of(code);
    if (place.code == nullptr || *place.code != code) found = "an entry is not found by its code";
    before = code;
  });
  if (seen != count()) found = "the count differs from the entries";
  if (header().buffered > header().groups * 7) found = "the buffer is too full";
  return found;
}

}  // namespace headrace::index
