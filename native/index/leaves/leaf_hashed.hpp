// Hashed leaf: buckets of one cache line, each with keys and their values.
//
// A key is put into the bucket that its hash names, or, only if that is full, into the next one
// with room (and so on, round the end). So a lookup and an insert touch one line of data each, in a
// leaf of any size, which needs no header either: an empty entry has a code that cannot be a key of
// the leaf, and the entries of a bucket are packed, so that its last entry shows that it is full.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

// Keys of the leaf are neighbours: one multiplication would leave runs and strides in order.
inline std::uint64_t scatter(std::uint64_t code) {
  code *= 0x9e37'79b9'7f4a'7c15;
  code ^= code >> 32;
  return code * 0xd6e8'feb8'6659'fd93;
}

// The fewest lines that hold four entries or more, and waste at most a tenth.
template <class Value>
struct BucketLayout {
  static constexpr std::size_t entry_bytes = 8 + value_bytes<Value>;
  static constexpr std::size_t entries_of(std::size_t lines) {
    return lines * kLineBytes / entry_bytes;
  }
  static constexpr std::size_t count_lines() {
    std::size_t lines = 1;
    while (entries_of(lines) < 4 || entries_of(lines) * entry_bytes * 10 < lines * kLineBytes * 9) {
      ++lines;
    }
    return lines;
  }
  static constexpr std::size_t lines = count_lines();
  static constexpr std::size_t entries = entries_of(lines);
};

template <class Value, class Sharing>
class HashedLeaf {
  static constexpr std::size_t kEntries = BucketLayout<Value>::entries;
  static_assert(kEntries <= 16);
  static_assert(alignof(Value) <= 8, "values need an alignment of at most 8 bytes");
  static_assert(kMostMovedKeys <= std::size_t{1} << 16, "a place has 16 bits");
  // An insert that would go further from its bucket finds the leaf full: about 0.88 of it is then.
  // (A leaf less than half full has keys whose hashes are alike, which more memory may not part.)
  static constexpr std::uint32_t kMostProbes = 12;

 public:
  static constexpr std::size_t kBucketLines = BucketLayout<Value>::lines;
  static constexpr bool kAtomicPuts = Sharing::template kAtomicValue<Value>;

  explicit HashedLeaf(Word word)
      : data_(word.to()), empty_(word.empty_code()), buckets_(word.units()) {}

  static std::size_t lines(Word word) { return word.units() * kBucketLines; }
  // For `count` entries, filled so far, but with room for at most kMostMovedKeys.
  static std::uint32_t units(std::size_t count, double fill) {
    const auto needed = std::ceil(static_cast<double>(count) / (kEntries * fill));
    return static_cast<std::uint32_t>(
        std::clamp(needed, 1.0, static_cast<double>(kMostMovedKeys / kEntries)));
  }

  const void* home(std::uint64_t code) const { return keys(bucket_of(code)); }

  const Value* find(std::uint64_t code) const { return find(code, home(code)); }
  // `home`: as of the code.
  const Value* find(std::uint64_t code, const void* home) const {
    const auto* at = static_cast<const std::uint64_t*>(home);
    if (const auto found = matches(at, code); found != 0) {
      return values(at) + std::countr_zero(found);
    }
    return Sharing::load(at + kEntries - 1) == empty_ ? nullptr : find_further(code);
  }

  bool get(std::uint64_t code, Value& out) const { return get(code, home(code), out); }
  bool get(std::uint64_t code, const void* home, Value& out) const {
    const auto* value = find(code, home);
    if (value == nullptr) return false;
    Sharing::load_value(value, out);
    return true;
  }

  Outcome insert(std::uint64_t code, const Value& value, bool assign) const {
    auto bucket = bucket_of(code);
    for (std::uint32_t probe = 0; probe < buckets_; ++probe) {
      auto* at = keys(bucket);
      if (const auto found = matches(at, code); found != 0) {
        if (assign) Sharing::store_value(values(at) + std::countr_zero(found), value);
        return Outcome::present;
      }
      if (at[kEntries - 1] == empty_) {
        if (probe > kMostProbes && count() >= buckets_ * kEntries / 2) return Outcome::full;
        put(at, code, value);
        return Outcome::done;
      }
      bucket = next(bucket);
    }
    return Outcome::full;
  }

  bool update(std::uint64_t code, const Value& value) const {
    const auto* at = find(code);
    if (at == nullptr) return false;
    Sharing::store_value(const_cast<Value*>(at), value);
    return true;
  }

  // False: the leaf is empty.
  bool max(std::uint64_t& code) const {
    bool any = false;
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      const auto* at = keys(bucket);
      for (std::size_t i = 0; i < kEntries; ++i) {
        const auto here = Sharing::load(at + i);
        if (here == empty_) break;
        code = any ? std::max(code, here) : here;
        any = true;
      }
    }
    return any;
  }

  Outcome erase(std::uint64_t code) const {
    auto bucket = bucket_of(code);
    for (std::uint32_t probe = 0; probe < buckets_; ++probe) {
      auto* at = keys(bucket);
      const bool full = at[kEntries - 1] != empty_;
      if (const auto found = matches(at, code); found != 0) {
        remove(at, static_cast<std::size_t>(std::countr_zero(found)));
        if (full) refill(bucket);
        return at[0] == empty_ && sparse_from(bucket) ? Outcome::sparse : Outcome::done;
      }
      if (!full) return Outcome::absent;
      bucket = next(bucket);
    }
    return Outcome::absent;
  }

  std::size_t count() const {
    std::size_t total = 0;
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) total += used(keys(bucket));
    return total;
  }

  std::size_t capacity() const { return buckets_ * kEntries; }

  // Appends the entries with codes of at least `from`, in no order.
  template <class Buffer>
  void gather(std::uint64_t from, Buffer& to) const {
    auto buffer = to;
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      const auto* at = keys(bucket);
      for (std::size_t i = 0; i < kEntries; ++i) {
        const auto code = Sharing::load(at + i);
        Value value{};
        Sharing::load_value(values(at) + i, value);
        buffer.append_if(code != empty_ && code >= from, code, value);
      }
    }
    to = buffer;
  }

  // Places of entries: bucket and entry of it as one number, below capacity().
  // Memory of the entry at a place.
  const void* entry_at(std::size_t place) const { return keys_at(place); }
  std::uint64_t code_at(std::size_t place) const {
    return Sharing::load(keys_at(place) + place % kEntries);
  }
  Value value_at(std::size_t place) const {
    Value value{};
    Sharing::load_value(values(keys_at(place)) + place % kEntries, value);
    return value;
  }
  // Appends all codes with their places, in no order.
  template <class Buffer>
  void gather_places(Buffer& to) const {
    auto buffer = to;
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      const auto* at = keys(bucket);
      for (std::size_t i = 0; i < kEntries; ++i) {
        const auto code = Sharing::load(at + i);
        buffer.append_if(code != empty_, code, static_cast<std::uint16_t>(bucket * kEntries + i));
      }
    }
    to = buffer;
  }

  // The least code from `low` on and at most `high`, or the greatest one. False: there is none.
  template <bool kLowest>
  bool nearest(std::uint64_t low, std::uint64_t high, std::uint64_t& code) const {
    // Codes outside wrap around to a greater distance, also the one that marks empty entries: the
    // highest code where `low` may be 0.
    std::array<std::uint64_t, kEntries> distances;
    distances.fill(~std::uint64_t{0});
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      const auto* at = keys(bucket);
      for (std::size_t i = 0; i < kEntries; ++i) {
        const auto candidate = Sharing::load(at + i);
        const auto distance = kLowest ? candidate - low : high - candidate;
        distances[i] = std::min(distances[i], distance);
      }
    }
    const auto least = *std::min_element(distances.begin(), distances.end());
    code = kLowest ? low + least : high - least;
    return least <= high - low && code != empty_;
  }

  // Writes the leaf for the first time.
  void fill(const Entries<Value>& entries) const {
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      for (std::size_t i = 0; i < kEntries; ++i) keys(bucket)[i] = empty_;
    }
    for (std::size_t i = 0; i < entries.count; ++i) place(entries.codes[i], entries.value(i));
  }

  const char* broken() const {
    for (std::uint32_t bucket = 0; bucket < buckets_; ++bucket) {
      const auto* at = keys(bucket);
      const auto count = used(at);
      for (std::size_t i = count; i < kEntries; ++i) {
        if (at[i] != empty_) return "entries of a bucket are not packed";
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (find(at[i]) != values(at) + i) return "a key is not where a lookup finds it";
      }
    }
    return nullptr;
  }

 private:
  // In the buckets after the code's own.
  const Value* find_further(std::uint64_t code) const {
    auto bucket = bucket_of(code);
    for (std::uint32_t probe = 1; probe < buckets_; ++probe) {
      bucket = next(bucket);
      const auto* at = keys(bucket);
      if (const auto found = matches(at, code); found != 0) {
        return values(at) + std::countr_zero(found);
      }
      if (Sharing::load(at + kEntries - 1) == empty_) return nullptr;
    }
    return nullptr;
  }

  std::uint32_t bucket_of(std::uint64_t code) const {
    return static_cast<std::uint32_t>((scatter(code) >> 32) * buckets_ >> 32);
  }
  std::uint32_t next(std::uint32_t bucket) const { return bucket + 1 == buckets_ ? 0 : bucket + 1; }
  std::uint32_t distance(std::uint32_t from, std::uint32_t to) const {
    return to >= from ? to - from : to + buckets_ - from;
  }
  std::uint64_t* keys(std::uint32_t bucket) const {
    return reinterpret_cast<std::uint64_t*>(data_ + bucket * kBucketLines);
  }
  const std::uint64_t* keys_at(std::size_t place) const {
    return keys(static_cast<std::uint32_t>(place / kEntries));
  }
  static Value* values(std::uint64_t* at) { return reinterpret_cast<Value*>(at + kEntries); }
  static const Value* values(const std::uint64_t* at) {
    return reinterpret_cast<const Value*>(at + kEntries);
  }

  // Bit i: entry i has this code. Without branches: the entry's number cannot be predicted.
  static std::uint32_t matches(const std::uint64_t* at, std::uint64_t code) {
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < kEntries; ++i) {
      found |= static_cast<std::uint32_t>(Sharing::load(at + i) == code) << i;
    }
    return found;
  }

  std::size_t used(const std::uint64_t* at) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < kEntries; ++i) count += at[i] != empty_;
    return count;
  }

  void put(std::uint64_t* at, std::uint64_t code, const Value& value) const {
    const auto i = used(at);
    Sharing::store_value(values(at) + i, value);
    Sharing::store(at + i, code);
  }

  void place(std::uint64_t code, const Value& value) const {
    auto bucket = bucket_of(code);
    while (keys(bucket)[kEntries - 1] != empty_) bucket = next(bucket);
    put(keys(bucket), code, value);
  }

  void remove(std::uint64_t* at, std::size_t i) const {
    const auto last = used(at) - 1;
    if (i != last) {
      Value value{};
      Sharing::load_value(values(at) + last, value);
      Sharing::store_value(values(at) + i, value);
      Sharing::store(at + i, at[last]);
    }
    Sharing::store(at + last, empty_);
  }

  // Bucket `hole` was full and now has room: keys that had to pass it move back.
  void refill(std::uint32_t hole) const {
    auto bucket = next(hole);
    for (std::uint32_t probe = 1; probe < buckets_; ++probe, bucket = next(bucket)) {
      auto* at = keys(bucket);
      const bool full = at[kEntries - 1] != empty_;
      const auto count = used(at);
      for (std::size_t i = 0; i < count; ++i) {
        if (distance(bucket_of(at[i]), bucket) < distance(hole, bucket)) continue;
        Value value{};
        Sharing::load_value(values(at) + i, value);
        put(keys(hole), at[i], value);
        remove(at, i);
        hole = bucket;
        break;
      }
      if (!full) return;
    }
  }

  // Less than a quarter filled. Counted only where a run of empty buckets makes it likely.
  bool sparse_from(std::uint32_t bucket) const {
    for (std::uint32_t i = 0; i < 8 && i < buckets_; ++i, bucket = next(bucket)) {
      if (keys(bucket)[0] != empty_) return false;
    }
    const auto keys_left = count();
    return keys_left == 0 || keys_left < buckets_ * kEntries / 4;
  }

  Line* data_;
  std::uint64_t empty_;
  std::uint32_t buckets_;
};

}  // namespace headrace::index
