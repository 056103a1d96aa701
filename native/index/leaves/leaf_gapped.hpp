// Gapped leaf (ALEX's gapped array): ascending codes with gaps between them, each where a linear
// model predicts it, or near.
//
// A lookup searches from the predicted position in steps that double, then by halves. A gap has the
// code of the next entry to its right (the highest code, if there is none), so the array is sorted
// as a whole; a bitmap tells entries from gaps. An insert takes a gap or shifts entries to one.
//
// Iterations of searches and shifts of inserts are counted, those of lookups are not (MAPLE, 6.4).
// If their means exceed both what the model led to expect and the configured limits (Msi, Msh), or
// four fifths are filled, the leaf is full: it is made anew, larger, or split.
//
// Lines of a leaf: header, bitmap, codes, values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "index/configuration.hpp"
#include "index/leaves/search.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"

namespace headrace::index {

struct alignas(kLineBytes) GappedHeader {
  std::uint64_t first_code;  // the model: position = (code - first_code) * slope + offset
  double slope;
  double offset;
  std::uint32_t capacity;
  std::uint32_t lines;
  std::uint64_t count;
  std::uint32_t most;     // entries: the highest density
  std::uint32_t inserts;  // since the leaf was made
  float max_search;       // mean iterations and shifts of an insert
  float max_shifts;
  std::uint32_t iterations;
  std::uint32_t shifts;
};
static_assert(sizeof(GappedHeader) == kLineBytes);

template <class Value, class Sharing>
class GappedLeaf {
 public:
  static constexpr double kHighestDensity = 0.8;
  // Means of fewer inserts are not judged.
  static constexpr std::uint32_t kFewInserts = 64;

  explicit GappedLeaf(Word word) : header_(word.to<GappedHeader>()) {}

  static std::size_t lines(Word word) { return word.to<GappedHeader>()->lines; }
  static std::uint32_t capacity_for(std::size_t count, double density) {
    const auto needed = std::ceil(static_cast<double>(count) / std::fmin(density, 0.95));
    return static_cast<std::uint32_t>(std::fmax(8, needed + 1));
  }
  static std::size_t lines_for(std::uint32_t capacity) {
    const auto bytes = bitmap_words(capacity) * 8 + capacity * (8 + value_bytes<Value>);
    return (sizeof(GappedHeader) + bytes + kLineBytes - 1) / kLineBytes;
  }

  // Writes the leaf for the first time; entries in ascending order.
  static void create(Line* lines, std::uint32_t capacity, const Configuration& configuration,
                     const Entries<Value>& entries) {
    auto* header = new (lines) GappedHeader{};
    header->capacity = capacity;
    header->lines = static_cast<std::uint32_t>(lines_for(capacity));
    const auto most = std::max(static_cast<double>(entries.count), capacity * kHighestDensity);
    header->most = std::min(capacity - 1, static_cast<std::uint32_t>(most));
    header->count = entries.count;
    const GappedLeaf leaf{Word(lines, Kind::gapped)};
    leaf.fit(entries);
    leaf.fill(entries);
    leaf.expect(entries, configuration);
  }

  const void* home(std::uint64_t code) const { return codes() + predict(code); }

  const Value* find(std::uint64_t code) const {
    const auto i = position(code);
    return i < header_->capacity ? values() + i : nullptr;
  }
  bool get(std::uint64_t code, Value& out) const {
    const auto i = position(code);
    if (i >= header_->capacity) return false;
    Sharing::load_value(values() + i, out);
    return true;
  }
  bool update(std::uint64_t code, const Value& value) const {
    const auto i = position(code);
    if (i >= header_->capacity) return false;
    Sharing::store_value(values() + i, value);
    return true;
  }

  Outcome insert(std::uint64_t code, const Value& value, bool assign) const {
    std::uint32_t iterations = 0;
    const auto at = lower_bound(code, iterations);
    const auto next = next_entry(at);
    if (next < header_->capacity && codes()[next] == code) {
      if (assign) Sharing::store_value(values() + next, value);
      return Outcome::present;
    }
    if (header_->count >= header_->most || too_slow()) return Outcome::full;
    header_->iterations += iterations;
    ++header_->inserts;
    place(code, value, at, next);
    Sharing::store(&header_->count, header_->count + 1);
    return Outcome::done;
  }

  Outcome erase(std::uint64_t code) const {
    const auto i = position(code);
    if (i >= header_->capacity) return Outcome::absent;
    flip(i);
    const auto next = next_entry(i);
    const auto copy = next < header_->capacity ? codes()[next] : ~std::uint64_t{0};
    for (auto gap = i; !taken(gap); --gap) {
      Sharing::store(codes() + gap, copy);
      if (gap == 0) break;
    }
    const auto count = header_->count - 1;
    Sharing::store(&header_->count, count);
    return count == 0 || count < header_->capacity / 6 ? Outcome::sparse : Outcome::done;
  }

  std::size_t count() const { return Sharing::load(&header_->count); }
  std::size_t capacity() const { return header_->capacity; }

  // Appends at most `most` entries with codes of at least `from`, in ascending order.
  void scan(std::uint64_t from, std::size_t most, EntryBuffer<Value>& to) const {
    std::uint32_t iterations = 0;
    const auto first = lower_bound(from, iterations);
    const auto* const all_codes = codes();
    const auto* const all_values = values();
    const auto words = bitmap_words(header_->capacity);
    const auto some = std::min(most + most / 2, header_->capacity - std::size_t{first});  // gaps
    prefetch_some(all_values + first, some);
    prefetch_some(all_codes + first, some);
    auto buffer = to;
    auto before = std::uint64_t{1} << first % 64;  // entries of the first word below it are skipped
    for (std::size_t word = first / 64; word < words && most > 0; ++word, before = 1) {
      auto bits = Sharing::load(bitmap() + word) & ~(before - 1);
      for (; bits != 0 && most > 0; bits &= bits - 1, --most) {
        const auto i = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        Value value{};
        Sharing::load_value(all_values + i, value);
        buffer.append(Sharing::load(all_codes + i), value);
      }
    }
    to = buffer;
  }
  void gather(std::uint64_t from, EntryBuffer<Value>& to) const { scan(from, capacity(), to); }

  // Places of entries: the first with a code of at least `code`, the last with one of at most
  // `code`, and those beside an entry's. capacity(): there is none.
  std::uint32_t first_place(std::uint64_t code) const {
    std::uint32_t iterations = 0;
    return next_entry(lower_bound(code, iterations));
  }
  std::uint32_t last_place(std::uint64_t code) const {
    std::uint32_t iterations = 0;
    const bool all = code == ~std::uint64_t{0};
    return place_before(all ? header_->capacity : lower_bound(code + 1, iterations));
  }
  std::uint32_t place_after(std::uint32_t place) const { return next_entry(place + 1); }
  std::uint32_t place_before(std::uint32_t place) const {
    auto word = place / 64;
    const auto own = place % 64;
    auto bits = own == 0 ? 0 : bitmap()[word] & ((std::uint64_t{1} << own) - 1);
    while (bits == 0) {
      if (word == 0) return header_->capacity;
      bits = bitmap()[--word];
    }
    return word * 64 + 63 - static_cast<std::uint32_t>(std::countl_zero(bits));
  }
  std::uint64_t code_at(std::uint32_t place) const { return Sharing::load(codes() + place); }
  Value value_at(std::uint32_t place) const {
    Value value{};
    Sharing::load_value(values() + place, value);
    return value;
  }

  bool max(std::uint64_t& code) const {
    for (auto word = bitmap_words(header_->capacity); word-- > 0;) {
      const auto bits = Sharing::load(bitmap() + word);
      if (bits == 0) continue;
      const auto i = word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(bits));
      code = Sharing::load(codes() + i);
      return true;
    }
    return false;
  }

  // Its model is worse than expected, so that more room alone does not help.
  bool too_slow() const {
    const auto inserts = static_cast<float>(header_->inserts);
    return header_->inserts >= kFewInserts &&
           (static_cast<float>(header_->iterations) > header_->max_search * inserts ||
            static_cast<float>(header_->shifts) > header_->max_shifts * inserts);
  }

  const char* broken() const {
    std::size_t entries = 0;
    for (std::uint32_t i = 0; i < header_->capacity; ++i) {
      if (i > 0 && codes()[i - 1] > codes()[i]) return "its codes are not in order";
      const auto next = next_entry(i);
      const auto copy = next < header_->capacity ? codes()[next] : ~std::uint64_t{0};
      if (codes()[i] != copy) return "a gap has not the code of the next entry";
      if (!taken(i)) continue;
      ++entries;
      if (position(codes()[i]) != i) return "a key is not where a lookup finds it";
    }
    return entries == count() ? nullptr : "its count differs from its entries";
  }

 private:
  static std::size_t bitmap_words(std::uint32_t capacity) { return (capacity + 63) / 64; }
  std::uint64_t* bitmap() const { return reinterpret_cast<std::uint64_t*>(header_ + 1); }
  std::uint64_t* codes() const { return bitmap() + bitmap_words(header_->capacity); }
  Value* values() const { return reinterpret_cast<Value*>(codes() + header_->capacity); }

  bool taken(std::uint32_t i) const { return bitmap()[i / 64] >> (i % 64) & 1; }
  void flip(std::uint32_t i) const {
    auto* word = bitmap() + i / 64;
    Sharing::store(word, *word ^ std::uint64_t{1} << (i % 64));
  }

  // First entry at or after a position; the capacity if there is none.
  std::uint32_t next_entry(std::uint32_t i) const {
    const auto capacity = header_->capacity;
    if (i >= capacity) return capacity;
    auto word = i / 64;
    auto bits = Sharing::load(bitmap() + word) >> (i % 64) << (i % 64);
    const auto words = bitmap_words(capacity);
    while (bits == 0) {
      if (++word == words) return capacity;
      bits = Sharing::load(bitmap() + word);
    }
    return word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
  }

  // Monotone in the code: rounding is.
  std::uint32_t predict(std::uint64_t code) const {
    const auto& model = *header_;
    const auto above = code > model.first_code ? code - model.first_code : 0;
    const auto position = static_cast<double>(above) * model.slope + model.offset;
    if (!(position > 0)) return 0;
    const auto last = model.capacity - 1;
    return position < last ? static_cast<std::uint32_t>(position) : last;
  }

  // First position whose code is at least `code`, or the capacity.
  std::uint32_t lower_bound(std::uint64_t code, std::uint32_t& iterations) const {
    const auto capacity = header_->capacity;
    const auto guess = predict(code);
    std::uint32_t low, high;  // the position is from low to high
    std::uint32_t step = 1;
    if (Sharing::load(codes() + guess) < code) {
      low = guess + 1;
      for (;; step *= 2, ++iterations) {
        high = std::min(guess + step, capacity);
        if (high == capacity || Sharing::load(codes() + high) >= code) break;
        low = high + 1;
      }
    } else {
      high = guess;
      for (;; step *= 2, ++iterations) {
        low = guess > step ? guess - step : 0;
        if (low == 0 || Sharing::load(codes() + low) < code) break;
        high = low;
      }
    }
    while (low < high) {
      const auto middle = low + (high - low) / 2;
      const bool below = Sharing::load(codes() + middle) < code;
      low = below ? middle + 1 : low;
      high = below ? high : middle;
    }
    return low;
  }

  // The capacity: not there.
  std::uint32_t position(std::uint64_t code) const {
    std::uint32_t iterations = 0;
    const auto i = next_entry(lower_bound(code, iterations));
    const auto capacity = header_->capacity;
    return i < capacity && Sharing::load(codes() + i) == code ? i : capacity;
  }

  // Gaps for a new code: from `at` to the next entry, perhaps none.
  void place(std::uint64_t code, const Value& value, std::uint32_t at, std::uint32_t next) const {
    if (at < next) {
      const auto to = std::clamp(predict(code), at, next - 1);
      for (auto gap = at; gap < to; ++gap) Sharing::store(codes() + gap, code);
      return write(to, code, value);
    }
    const Value stored = value;  // of an entry of this leaf, which may be shifted
    std::uint32_t left = at;     // one past a gap, or 0
    std::uint32_t right = at;    // a gap, or the capacity
    const auto capacity = header_->capacity;
    nearest_gaps(left, right);
    const bool to_right = right < capacity && (left == 0 || right - at < at - left);
    header_->shifts += to_right ? right - at : at - left;
    if (to_right) {
      for (auto i = right; i > at; --i) move(i - 1, i);
      flip(right);
      flip(at);
      return write(at, code, stored);
    }
    for (auto i = left; i < at; ++i) move(i, i - 1);
    flip(left - 1);
    flip(at - 1);
    write(at - 1, code, stored);
  }

  void nearest_gaps(std::uint32_t& left, std::uint32_t& right) const {
    const auto capacity = header_->capacity;
    while ((right < capacity && taken(right)) && (left > 0 && taken(left - 1))) {
      ++right;
      --left;
    }
    const bool found = (right < capacity && !taken(right)) || (left > 0 && !taken(left - 1));
    while (!found && right < capacity && taken(right)) ++right;
    while (right == capacity && left > 0 && taken(left - 1)) --left;
    if (right < capacity && taken(right)) right = capacity;
    if (left > 0 && taken(left - 1)) left = 0;
  }

  void move(std::uint32_t from, std::uint32_t to) const {
    Value value{};
    Sharing::load_value(values() + from, value);
    Sharing::store_value(values() + to, value);
    Sharing::store(codes() + to, codes()[from]);
  }
  void write(std::uint32_t i, std::uint64_t code, const Value& value) const {
    Sharing::store_value(values() + i, value);
    Sharing::store(codes() + i, code);
    flip(i);
  }

  // Least squares of position over code, stretched to the capacity.
  void fit(const Entries<Value>& entries) const {
    auto& model = *header_;
    model.first_code = entries.count == 0 ? 0 : entries.codes[0];
    if (entries.count < 2) return;
    const auto n = static_cast<double>(entries.count);
    double mean = 0;
    for (std::size_t i = 0; i < entries.count; ++i) mean += offset_of(entries.codes[i]);
    mean /= n;
    double products = 0;
    double squares = 0;
    for (std::size_t i = 0; i < entries.count; ++i) {
      const auto x = offset_of(entries.codes[i]) - mean;
      products += x * (static_cast<double>(i) - (n - 1) / 2);
      squares += x * x;
    }
    const auto stretch = model.capacity / n;
    model.slope = products / squares * stretch;
    model.offset = (n - 1) / 2 * stretch - model.slope * mean;
  }
  double offset_of(std::uint64_t code) const {
    return static_cast<double>(code - header_->first_code);
  }

  // Each entry at its predicted position, or the next that leaves room for those to come.
  void fill(const Entries<Value>& entries) const {
    std::memset(bitmap(), 0, bitmap_words(header_->capacity) * 8);
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < entries.count; ++i) {
      const auto latest = header_->capacity - static_cast<std::uint32_t>(entries.count - i);
      const auto at = std::min(std::max(predict(entries.codes[i]), next), latest);
      for (; next < at; ++next) codes()[next] = entries.codes[i];
      write(at, entries.codes[i], entries.value(i));
      next = at + 1;
    }
    std::fill(codes() + next, codes() + header_->capacity, ~std::uint64_t{0});
  }

  // ALEX's expectation of the iterations and shifts of inserts, as it is after the build.
  void expect(const Entries<Value>& entries, const Configuration& configuration) const {
    std::uint32_t iterations = 0;
    double shifts = 0;
    const auto stride = entries.count / 256 + 1;  // a sample is enough
    for (std::size_t rank = 0; rank < entries.count; rank += stride) {
      lower_bound(entries.codes[rank], iterations);
    }
    iterations *= static_cast<std::uint32_t>(stride);
    for (std::uint32_t begin = 0; begin < header_->capacity;) {
      if (!taken(begin)) {
        ++begin;
        continue;
      }
      auto end = begin;
      while (end < header_->capacity && taken(end)) ++end;
      shifts += static_cast<double>(end - begin) * (end - begin) / 4;
      begin = end;
    }
    const auto n = std::fmax(1, static_cast<double>(entries.count));
    // Costs of an iteration and a shift weigh by the share of operations that have them; with few
    // inserts a leaf may be worse for them before it is made anew.
    const auto allowance = 1.0 / std::fmax(0.1, configuration.insert_fraction);
    header_->max_search =
        static_cast<float>(std::fmax(1.5 * iterations / n, configuration.max_search));
    header_->max_shifts =
        static_cast<float>(std::fmax(1.5 * allowance * shifts / n, configuration.max_shifts));
  }

  GappedHeader* header_;
};

}  // namespace headrace::index
