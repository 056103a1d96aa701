// Log leaf (MAPLE's fragmented log, section 6.2.2): a dense array that inserts append to.
//
// A search is linear: over one-byte fingerprints, sixteen at once, or over the codes themselves.
// Entries before `sorted` are in order, as a leaf is written by bulk loading, growing or splitting;
// a scan of an exclusive map sorts the rest, a lookup never does. Of codes without fingerprints the
// sorted ones are searched by halves, the rest linearly.
//
// Lines of a leaf: header, fingerprints (as many as entries fit, or none), codes, values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "index/configuration.hpp"
#include "index/leaves/leaf_hashed.hpp"
#include "index/leaves/search.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

struct LogHeader {
  std::uint64_t counts;  // entries; of them sorted, in the upper half
  std::uint32_t capacity;
  std::uint32_t fingerprint_bytes;
};
static_assert(sizeof(LogHeader) == 16);

template <class Value, class Sharing>
class LogLeaf {
 public:
  static constexpr bool kAtomicPuts = Sharing::template kAtomicValue<Value>;

  explicit LogLeaf(Word word) : header_(word.to<LogHeader>()) {}

  // Lines of a unit: one, or, of large values, what makes the largest leaf fit a word's units.
  static constexpr std::size_t kUnitLines = [] {
    constexpr auto kBytes = sizeof(LogHeader) + 8 + kMostMovedKeys * (9 + value_bytes<Value>);
    constexpr auto kMostBytes = kLineBytes * Word::kMostUnits;
    return (kBytes + kMostBytes - 1) / kMostBytes;
  }();

  static std::size_t lines(Word word) { return word.units() * kUnitLines; }
  // For `count` entries, filled so far, but with room for at most kMostMovedKeys.
  static std::uint32_t units(std::size_t count, double fill, bool fingerprints) {
    const auto entries = std::clamp(std::ceil(static_cast<double>(count) / fill), 1.0,
                                    static_cast<double>(kMostMovedKeys));
    const auto bytes = sizeof(LogHeader) + 8 + entries * entry_bytes(fingerprints);
    return static_cast<std::uint32_t>(std::ceil(bytes / (kUnitLines * kLineBytes)));
  }

  // Writes the leaf for the first time; entries in any order.
  static void create(Line* lines, std::uint32_t units, bool fingerprints,
                     const Entries<Value>& entries) {
    const auto bytes = static_cast<double>(units * kUnitLines * kLineBytes - sizeof(LogHeader) - 8);
    const auto capacity = static_cast<std::uint32_t>(
        std::fmin(bytes / entry_bytes(fingerprints), static_cast<double>(kMostMovedKeys)));
    auto* header = new (lines) LogHeader{0, capacity, fingerprints ? (capacity + 7) / 8 * 8 : 0};
    const LogLeaf leaf{Word(lines, Kind::log, units)};
    std::memset(leaf.fingerprints(), 0, header->fingerprint_bytes);
    for (std::size_t i = 0; i < entries.count; ++i) leaf.append(entries.codes[i], entries.value(i));
    const auto* end = std::is_sorted_until(entries.codes, entries.codes + entries.count);
    leaf.set_counts(entries.count, static_cast<std::size_t>(end - entries.codes));
  }

  const void* home(std::uint64_t) const { return header_; }

  const Value* find(std::uint64_t code) const {
    const auto i = position(code);
    return i < 0 ? nullptr : values() + i;
  }
  bool get(std::uint64_t code, Value& out) const {
    const auto i = position(code);
    if (i >= 0) Sharing::load_value(values() + i, out);
    return i >= 0;
  }
  bool update(std::uint64_t code, const Value& value) const {
    const auto i = position(code);
    if (i >= 0) Sharing::store_value(values() + i, value);
    return i >= 0;
  }

  Outcome insert(std::uint64_t code, const Value& value, bool assign) const {
    const auto i = position(code);
    if (i >= 0) {
      if (assign) Sharing::store_value(values() + i, value);
      return Outcome::present;
    }
    return append(code, value) ? Outcome::done : Outcome::full;
  }

  // Without a search. False: the leaf is full.
  bool append(std::uint64_t code, const Value& value) const {
    const auto i = count();
    if (i == header_->capacity) return false;
    const auto before = sorted();
    put(i, code, value);
    set_counts(i + 1, before == i && (i == 0 || codes()[i - 1] < code) ? i + 1 : before);
    return true;
  }

  Outcome erase(std::uint64_t code) const {
    const auto i = position(code);
    if (i < 0) return Outcome::absent;
    remove(static_cast<std::size_t>(i));
    return sparse() ? Outcome::sparse : Outcome::done;
  }
  bool sparse() const { return count() == 0 || count() < header_->capacity / 4; }

  // For multimaps. All entries, in no order.
  Entries<Value> entries() const { return {codes(), values(), count()}; }
  // Calls `action(value)` for each entry with this code, in no order.
  template <class Action>
  void each(std::uint64_t code, const Action& action) const {
    for (auto i = position(code, 0); i >= 0; i = position(code, static_cast<std::size_t>(i) + 1)) {
      action(value_at(static_cast<std::size_t>(i)));
    }
  }
  // Erases at most `most` entries with this code of which `matches(value)`. Returns how many.
  template <class Matches>
  std::size_t erase_each(std::uint64_t code, std::size_t most, const Matches& matches) const {
    std::size_t erased = 0;
    for (std::size_t next = 0; erased < most;) {
      const auto i = position(code, next);
      if (i < 0) break;
      next = static_cast<std::size_t>(i);
      if (matches(value_at(next))) {
        remove(next);
        ++erased;
      } else {
        ++next;
      }
    }
    return erased;
  }

  std::size_t count() const { return Sharing::load(&header_->counts) & 0xffff'ffff; }
  std::size_t capacity() const { return header_->capacity; }

  // Appends the entries with codes of at least `from`, in no order.
  template <class Buffer>
  void gather(std::uint64_t from, Buffer& to) const {
    const auto end = count();
    auto buffer = to;
    for (std::size_t i = 0; i < end; ++i) {
      const auto code = Sharing::load(codes() + i);
      buffer.append_if(code >= from, code, value_at(i));
    }
    to = buffer;
  }

  bool max(std::uint64_t& code) const {
    const auto end = count();
    if (end == 0) return false;
    code = 0;
    for (std::size_t i = 0; i < end; ++i) code = std::max(code, Sharing::load(codes() + i));
    return true;
  }

  // Puts all entries in order, by way of those that are not; only where no reader can see them
  // move.
  void sort(std::pair<std::uint64_t, Value>* rest) const
    requires(!Sharing::kShared)
  {
    const auto end = count();
    auto in_order = sorted();
    auto left = end - in_order;
    for (std::size_t i = 0; i < left; ++i) {
      new (rest + i) std::pair(codes()[in_order + i], value_at(in_order + i));
    }
    std::sort(rest, rest + left, [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto to = end; left > 0;) {  // merged from the end
      --to;
      if (in_order > 0 && codes()[in_order - 1] > rest[left - 1].first) {
        --in_order;
        put(to, codes()[in_order], value_at(in_order));
      } else {
        --left;
        put(to, rest[left].first, rest[left].second);
      }
    }
    set_counts(end, end);
  }
  // Of a leaf in order, the lowest `most` entries with codes of at least `from`.
  void scan_in_order(std::uint64_t from, std::size_t most, EntryBuffer<Value>& to) const {
    const auto first = lower_bound_of<Sharing>(codes(), count(), from);
    const auto some = std::min(most, count() - first);
    prefetch_some(values() + first, some);
    prefetch_some(codes() + first, some);
    std::copy_n(codes() + first, some, to.codes + to.count);
    if constexpr (value_bytes<Value> != 0) {
      std::copy_n(values() + first, some, to.values + to.count);
    }
    to.count += some;
  }
  std::size_t out_of_order() const { return count() - sorted(); }

  const char* broken() const {
    if (count() > capacity() || sorted() > count()) return "more entries than it has room for";
    if (!std::is_sorted(codes(), codes() + sorted())) return "its sorted entries are not in order";
    for (std::size_t i = 0; i < count(); ++i) {
      if (position(codes()[i]) != static_cast<std::ptrdiff_t>(i)) {
        return "a key is not where a lookup finds it";
      }
    }
    return nullptr;
  }

 private:
  static double entry_bytes(bool fingerprints) {
    return 8.0 + static_cast<double>(value_bytes<Value>) + (fingerprints ? 1 : 0);
  }
  static std::uint8_t fingerprint(std::uint64_t code) {
    return static_cast<std::uint8_t>(scatter(code) >> 56);
  }

  std::uint64_t* fingerprints() const { return reinterpret_cast<std::uint64_t*>(header_ + 1); }
  std::uint64_t* codes() const { return fingerprints() + header_->fingerprint_bytes / 8; }
  Value* values() const { return reinterpret_cast<Value*>(codes() + header_->capacity); }
  Value value_at(std::size_t i) const {
    Value value{};
    Sharing::load_value(values() + i, value);
    return value;
  }
  std::size_t sorted() const { return Sharing::load(&header_->counts) >> 32; }
  void set_counts(std::size_t count, std::size_t sorted) const {
    Sharing::store(&header_->counts, count | static_cast<std::uint64_t>(sorted) << 32);
  }

  void remove(std::size_t i) const {
    const auto last = count() - 1;
    if (i != last) put(i, codes()[last], value_at(last));
    set_counts(last, std::min(sorted(), i));
  }

  void put(std::size_t i, std::uint64_t code, const Value& value) const {
    if (header_->fingerprint_bytes != 0) {
      auto* word = fingerprints() + i / 8;
      const auto shift = i % 8 * 8;
      const auto others = *word & ~(std::uint64_t{0xff} << shift);
      Sharing::store(word, others | static_cast<std::uint64_t>(fingerprint(code)) << shift);
    }
    Sharing::store_value(values() + i, value);
    Sharing::store(codes() + i, code);
  }

  // Of the first entry from `first` on with this code. Negative: not there.
  std::ptrdiff_t position(std::uint64_t code, std::size_t first) const {
    if (header_->fingerprint_bytes != 0) return by_fingerprints(code, first, count());
    return position_of<Sharing>(codes(), first, count(), code);
  }
  // Of one entry with this code.
  std::ptrdiff_t position(std::uint64_t code) const {
    const auto end = count();
    if (header_->fingerprint_bytes != 0) return by_fingerprints(code, 0, end);
    const auto in_order = sorted();
    if (in_order > 16) {
      const auto i = lower_bound_of<Sharing>(codes(), in_order, code);
      if (i < in_order && Sharing::load(codes() + i) == code) return static_cast<std::ptrdiff_t>(i);
      return position_of<Sharing>(codes(), in_order, end, code);
    }
    return position_of<Sharing>(codes(), 0, end, code);
  }

  std::ptrdiff_t by_fingerprints(std::uint64_t code, std::size_t from, std::size_t end) const {
    const auto byte = fingerprint(code);
    auto skipped = from % kFingerprintsAtOnce;  // of the first group
    for (auto first = from - skipped; first < end; first += kFingerprintsAtOnce, skipped = 0) {
      auto found = equal_fingerprints<Sharing>(fingerprints() + first / 8, byte,
                                               header_->fingerprint_bytes - first);
      for (found = found >> skipped << skipped; found != 0; found &= found - 1) {
        const auto i = first + static_cast<std::size_t>(std::countr_zero(found));
        if (i >= end) return -1;
        if (Sharing::load(codes() + i) == code) return static_cast<std::ptrdiff_t>(i);
      }
    }
    return -1;
  }

  LogHeader* header_;
};

}  // namespace headrace::index
