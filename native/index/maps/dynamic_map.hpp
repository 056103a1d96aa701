// An ordered map whose types of keys and values are known at run time, for use from other
// languages: values are bits of 0, 4 or 8 bytes. Every call holds one lock for its duration, so
// that threads may share a map; a batch is one call. What a batch is given is checked before it
// changes anything; if memory ends inside of one (std::bad_alloc), the keys before are in the map.
// A fork waits for the calls that other threads have begun: a child's copy is whole and unlocked.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/maps/code_map.hpp"
#include "index/maps/code_range.hpp"
#include "index/maps/find_or_insert.hpp"
#include "index/maps/key_column.hpp"
#include "index/observe/activity.hpp"
#include "index/observe/recording.hpp"
#include "process.hpp"

namespace headrace::index {

// The entry next to a code: above it (`up`) or below, or the code's own, too (`own`).
struct Neighbour {
  bool up = true;
  bool own = true;
};

// An entry of a map and the way to its neighbours. Of any change of the map it needs to know
// nothing: it goes on to the next key that the map has by then.
class DynamicCursor {
 public:
  virtual ~DynamicCursor() = default;
  // Each writes the entry that the cursor is at by then. False: it is at none.
  virtual bool seek(std::uint64_t from, std::uint64_t& code, void* value) = 0;
  virtual bool next(std::uint64_t& code, void* value) = 0;
  virtual bool previous(std::uint64_t& code, void* value) = 0;  // at none: the last entry
};

class DynamicMap {
 public:
  using Lock = ForkSafeLock<>;
  virtual ~DynamicMap() = default;
  virtual std::size_t value_bytes() const = 0;
  virtual std::unique_ptr<DynamicMap> copy() const = 0;

  // Arrays of values have `value_bytes` an element, and are not used (may be null) if that is 0.
  virtual void build(const KeyColumn& keys, const void* values, int threads) = 0;
  // Sets `found` for each key, and its value, or `missing` if it is not there. Returns how many
  // are.
  virtual std::size_t find(const KeyColumn& keys, void* values, bool* found,
                           const void* missing) = 0;
  virtual std::size_t contains(const KeyColumn& keys, bool* found) = 0;
  virtual std::size_t insert_or_assign(const KeyColumn& keys, const void* values) = 0;
  // Sets each key's value, and whether the key is new: of equal ones the first is. New keys take
  // the first elements of `fresh`, which has `count`, in the order in which they first appear.
  // Returns how many are new. Throws std::invalid_argument, and changes nothing, if `fresh` has
  // fewer, or the map keys alone.
  virtual std::size_t find_or_insert(const KeyColumn& keys, const void* fresh, std::size_t count,
                                     void* values, bool* is_new) = 0;
  // Returns how many keys are in the map and so have a new value.
  virtual std::size_t update(const KeyColumn& keys, const void* values) = 0;
  virtual std::size_t erase(const KeyColumn& keys) = 0;
  virtual std::size_t erase_range(CodeRange range) = 0;
  virtual void clear() = 0;
  virtual void shrink_to_fit() = 0;

  // Writes at most `most` codes of a range, ascending, and their values. Returns how many.
  virtual std::size_t scan(CodeRange range, std::size_t most, std::uint64_t* codes,
                           void* values) = 0;
  // The same, descending from the end of the range.
  virtual std::size_t scan_down(CodeRange range, std::size_t most, std::uint64_t* codes,
                                void* values) = 0;
  // For each key the code of its neighbour, and its value, if `found`.
  virtual std::size_t neighbours(const KeyColumn& keys, Neighbour which, std::uint64_t* codes,
                                 void* values, bool* found) = 0;
  // For each key how many of the map's are below it.
  virtual void rank(const KeyColumn& keys, std::int64_t* ranks) = 0;
  // For each position the code that has so many below it, and its value. Throws std::out_of_range
  // with the first position that is none.
  virtual void select(const std::int64_t* positions, std::size_t count, std::uint64_t* codes,
                      void* values) = 0;
  // Must not outlive the map.
  virtual std::unique_ptr<DynamicCursor> cursor() = 0;
  virtual std::optional<std::uint64_t> min() const = 0;
  virtual std::optional<std::uint64_t> max() const = 0;
  virtual std::size_t size() const = 0;

  // One key, by a caller that holds this lock: true if the key is held, or for insertions, new.
  virtual Lock& lock() const = 0;
  virtual bool find_one(std::uint64_t code, void* value) = 0;
  virtual bool insert_one(std::uint64_t code, const void* value) = 0;
  // Writes the value that the key has by then.
  virtual bool find_or_insert_one(std::uint64_t code, const void* fresh, void* value) = 0;
  // Writes the value that the key had.
  virtual bool take_one(std::uint64_t code, void* value) = 0;
  virtual bool neighbour_of_one(std::uint64_t from, Neighbour which, std::uint64_t& code,
                                void* value) = 0;
  // Erases the entry of a position, and writes it. False: there is none.
  virtual bool take_at(std::size_t position, std::uint64_t& code, void* value) = 0;

  virtual Configuration configuration() const = 0;
  virtual void configure(const Configuration& configuration) = 0;
  // Converts leaves of about `most_keys` keys from `cursor` on, which it moves, to the
  // configuration; `done` at the end. Returns the seconds that it held the lock.
  virtual double convert(std::uint64_t& cursor, std::size_t most_keys, bool& done) = 0;
  virtual Statistics statistics() const = 0;
  virtual void verify() const = 0;

  virtual Activity activity() const = 0;
  // Returns the recording's number, or 0 if one is under way that does not yield its place.
  virtual std::uint64_t begin_recording(unsigned halvings, std::size_t most, bool yields) = 0;
  // Nothing if the recording of that number is not under way.
  virtual std::optional<Recording> end_recording(std::uint64_t number) = 0;
  // Visits about `most` keys from the code `cursor` on, and appends those that a recording of so
  // many halvings selects, ascending. Moves the cursor; false: the end is reached.
  virtual bool select(std::uint64_t& cursor, std::size_t most, unsigned halvings,
                      std::vector<std::uint64_t>& codes) const = 0;
};

namespace detail {

// `Observer`: Activity, or a class of it that observes nothing, to measure what that costs.
template <class Value, class Observer = Activity>
class DynamicMapOf final : public DynamicMap {
 public:
  explicit DynamicMapOf(const Configuration& configuration) : map_(configuration) {}
  explicit DynamicMapOf(CodeMap<Value> map) : map_(std::move(map)) {}
  CodeMap<Value> release() && { return std::move(map_); }

  std::size_t value_bytes() const override { return kBytes; }

  std::unique_ptr<DynamicMap> copy() const override {
    auto copied = std::make_unique<DynamicMapOf>(configuration());  // not within the lock
    std::lock_guard lock(mutex_);
    copied->map_ = map_;
    return copied;
  }

  void build(const KeyColumn& keys, const void* values, int threads) override {
    check_keys(keys);
    const Codes codes(keys);
    std::lock_guard lock(mutex_);
    map_.build(codes.data(), at(values, 0), keys.count, threads);
  }

  std::size_t find(const KeyColumn& keys, void* values, bool* found, const void* missing) override {
    check_keys(keys);
    const auto there = each(Operation::find, keys, [&](auto* codes, auto first, auto count) {
      return get(codes, count, at(values, first), found + first);
    });
    if constexpr (kBytes > 0) {
      if (there < keys.count) fill_missing(static_cast<Value*>(values), found, keys.count, missing);
    }
    return there;
  }

  std::size_t contains(const KeyColumn& keys, bool* found) override {
    check_keys(keys);
    return each(Operation::find, keys, [&](auto* codes, auto first, auto count) {
      std::array<Value, kCodeBlock> unused;
      std::size_t there = 0;
      for (std::size_t from = 0; from < count; from += kCodeBlock) {
        const auto some = std::min(kCodeBlock, count - from);
        there += get(codes + from, some, unused.data(), found + first + from);
      }
      return there;
    });
  }

  std::size_t insert_or_assign(const KeyColumn& keys, const void* values) override {
    check_keys(keys);
    return each(Operation::insert, keys, [&](auto* codes, auto first, auto count) {
      if (count == 1) return std::size_t{map_.insert_or_assign(codes[0], value(values, first))};
      return map_.insert_or_assign(codes, at(values, first), count);
    });
  }

  std::size_t find_or_insert(const KeyColumn& keys, const void* fresh, std::size_t count,
                             void* values, bool* is_new) override {
    check_keys(keys);
    if constexpr (kBytes == 0) {
      throw std::invalid_argument("this index has keys alone, and no values to find");
    } else {
      const Codes codes(keys);  // in one block, so that `fresh` is checked before the first change
      ArraySource<Value> source(static_cast<const Value*>(fresh), count);
      return each(Operation::insert, {codes.data(), keys.count, KeyType::uint64},
                  [&](auto* block, auto, auto size) {
                    return index::find_or_insert(map_, block, size, static_cast<Value*>(values),
                                                 is_new, source);
                  });
    }
  }

  std::size_t update(const KeyColumn& keys, const void* values) override {
    check_keys(keys);
    const Recorded assignment{Operation::insert, Operation::find};
    return each(assignment, keys, [&](auto* codes, auto first, auto count) {
      std::size_t there = 0;
      for (std::size_t i = 0; i < count; ++i) {
        there += map_.update(codes[i], value(values, first + i));
      }
      return there;
    });
  }

  std::size_t erase(const KeyColumn& keys) override {
    check_keys(keys);
    std::lock_guard lock(mutex_);
    return erase_locked(keys);
  }

  std::size_t erase_range(CodeRange range) override {
    std::vector<std::uint64_t> codes(kLargestScan);
    std::vector<Value> values(kLargestScan);
    std::size_t erased = 0;
    std::lock_guard lock(mutex_);
    for (bool more = range.first <= range.last; more;) {
      const auto count = scan_locked(range, codes.size(), codes.data(), values.data());
      more = count == codes.size() && codes[count - 1] < range.last;
      if (more) range.first = codes[count - 1] + 1;
      erased += erase_locked({codes.data(), count, KeyType::uint64});
    }
    return erased;
  }

  void clear() override {
    std::lock_guard lock(mutex_);
    if (recording_) {  // each key is erased
      std::uint64_t cursor = 0;
      map_.visit(cursor, ~std::size_t{0}, [this](const std::uint64_t* codes, std::size_t count) {
        record(Operation::erase, codes, count);
      });
    }
    map_.clear();
  }

  void shrink_to_fit() override {
    std::lock_guard lock(mutex_);
    map_.shrink_to_fit();
  }

  std::size_t scan(CodeRange range, std::size_t most, std::uint64_t* codes, void* values) override {
    if (range.first > range.last) return 0;
    const KeyColumn from{&range.first, 1, KeyType::uint64};
    return each(Operation::scan, from,
                [&](auto*, auto, auto) { return scan_locked(range, most, codes, values); });
  }

  std::size_t scan_down(CodeRange range, std::size_t most, std::uint64_t* codes,
                        void* values) override {
    if (range.first > range.last) return 0;
    const KeyColumn from{&range.last, 1, KeyType::uint64};
    return each(Operation::scan, from,
                [&](auto*, auto, auto) { return scan_down_locked(range, most, codes, values); });
  }

  std::size_t neighbours(const KeyColumn& keys, Neighbour which, std::uint64_t* codes, void* values,
                         bool* found) override {
    check_keys(keys);
    return each(Operation::find, keys, [&](auto* from, auto first, auto count) {
      std::size_t there = 0;
      for (std::size_t i = first; i < first + count; ++i) {
        found[i] = neighbour(from[i - first], which, codes[i], *at(values, i));
        there += found[i];
      }
      return there;
    });
  }

  void rank(const KeyColumn& keys, std::int64_t* ranks) override {
    check_keys(keys);
    each(Operation::find, keys, [&](auto* codes, auto first, auto count) {
      for (std::size_t i = 0; i < count; ++i) {
        ranks[first + i] = static_cast<std::int64_t>(map_.rank(codes[i], sums_));
      }
      return count;
    });
  }

  void select(const std::int64_t* positions, std::size_t count, std::uint64_t* codes,
              void* values) override {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < count; ++i) {
      const auto position = static_cast<std::size_t>(positions[i]);  // of negative ones, very large
      if (!map_.select(position, codes[i], *at(values, i), sums_)) {
        throw std::out_of_range("position " + std::to_string(positions[i]) + " is beyond the " +
                                std::to_string(map_.size()) + " keys");
      }
    }
  }

  std::unique_ptr<DynamicCursor> cursor() override { return std::make_unique<Cursor>(*this); }

  std::optional<std::uint64_t> min() const override {
    std::lock_guard lock(mutex_);
    std::uint64_t code = 0;
    return map_.min(code) ? std::optional(code) : std::nullopt;
  }

  std::optional<std::uint64_t> max() const override {
    std::lock_guard lock(mutex_);
    std::uint64_t code = 0;
    return map_.max(code) ? std::optional(code) : std::nullopt;
  }

  std::size_t size() const override {
    std::lock_guard lock(mutex_);
    return map_.size();
  }

  Lock& lock() const override { return mutex_; }

  bool find_one(std::uint64_t code, void* value) override {
    return one(Operation::find, code, [&] {
      Value read{};
      return map_.get(code, read) && written(read, value);
    });
  }

  bool insert_one(std::uint64_t code, const void* value) override {
    return one(Operation::insert, code,
               [&] { return map_.insert_or_assign(code, this->value(value, 0)); });
  }

  bool find_or_insert_one(std::uint64_t code, const void* fresh, void* value) override {
    return one(Operation::insert, code, [&] {
      Value stored{};
      const bool is_new = map_.find_or_insert(code, this->value(fresh, 0), stored);
      written(stored, value);
      return is_new;
    });
  }

  bool take_one(std::uint64_t code, void* value) override {
    return one(Operation::erase, code, [&] {
      Value read{};
      if (!map_.get(code, read)) return false;
      map_.erase(code);
      return written(read, value);
    });
  }

  bool neighbour_of_one(std::uint64_t from, Neighbour which, std::uint64_t& code,
                        void* value) override {
    return one(Operation::find, from, [&] {
      Value read{};
      return neighbour(from, which, code, read) && written(read, value);
    });
  }

  bool take_at(std::size_t position, std::uint64_t& code, void* value) override {
    Value read{};
    const auto size = map_.size();
    const bool there = position == 0          ? map_.ceiling(0, code, read)
                       : position + 1 == size ? map_.max(code)
                                              : map_.select(position, code, read, sums_);
    return there && take_one(code, value);
  }

  Configuration configuration() const override {
    std::lock_guard lock(mutex_);
    return map_.configuration();
  }

  void configure(const Configuration& configuration) override {
    std::lock_guard lock(mutex_);
    map_.configure(configuration);
  }

  double convert(std::uint64_t& cursor, std::size_t most_keys, bool& done) override {
    std::lock_guard lock(mutex_);
    const auto began = Activity::Clock::now();
    done = !map_.convert(cursor, most_keys);
    return std::chrono::duration<double>(Activity::Clock::now() - began).count();
  }

  Statistics statistics() const override {
    std::lock_guard lock(mutex_);
    return map_.statistics();
  }

  void verify() const override {
    std::lock_guard lock(mutex_);
    map_.verify();
  }

  Activity activity() const override {
    std::lock_guard lock(mutex_);
    return activity_;
  }

  std::uint64_t begin_recording(unsigned halvings, std::size_t most, bool yields) override {
    Recording begun(halvings, most);  // memory is allocated without the lock
    std::lock_guard lock(mutex_);
    if (recording_ && !yields_) return 0;
    recording_ = std::move(begun);
    yields_ = yields;
    return ++recordings_;
  }

  std::optional<Recording> end_recording(std::uint64_t number) override {
    std::lock_guard lock(mutex_);
    if (number != recordings_) return std::nullopt;
    return std::exchange(recording_, std::nullopt);
  }

  bool select(std::uint64_t& cursor, std::size_t most, unsigned halvings,
              std::vector<std::uint64_t>& codes) const override {
    std::vector<std::uint64_t> selected;  // of leaves in order, which have theirs in none
    std::vector<std::ptrdiff_t> ends;
    selected.reserve(most);
    bool more = false;
    {
      std::lock_guard lock(mutex_);
      more = map_.visit(cursor, most, [&](const std::uint64_t* visited, std::size_t count) {
        std::copy_if(visited, visited + count, std::back_inserter(selected),
                     [&](std::uint64_t code) { return Recording::selects(code, halvings); });
        ends.push_back(std::ssize(selected));
      });
    }
    std::ptrdiff_t first = 0;
    for (const auto end : ends) {
      std::sort(selected.begin() + first, selected.begin() + end);
      first = end;
    }
    codes.insert(codes.end(), selected.begin(), selected.end());
    return more;
  }

 private:
  class Cursor final : public DynamicCursor {
   public:
    explicit Cursor(DynamicMapOf& map) : map_(map), place_(map.map_.past_last()) {}

    bool seek(std::uint64_t from, std::uint64_t& code, void* value) override {
      std::lock_guard lock(map_.mutex_);
      map_.one(Operation::scan, from, [&] {
        place_ = map_.map_.first_from(from);
        return place_.valid();
      });
      return entry(code, value);
    }
    bool next(std::uint64_t& code, void* value) override {
      std::lock_guard lock(map_.mutex_);
      if (place_.valid()) place_.next();
      return entry(code, value);
    }
    bool previous(std::uint64_t& code, void* value) override {
      std::lock_guard lock(map_.mutex_);
      place_.previous();
      return entry(code, value);
    }

   private:
    // A place may have read its value before the last assignment.
    bool entry(std::uint64_t& code, void* value) const {
      if (!place_.valid()) return false;
      code = place_.code();
      Value read = place_.value();
      map_.map_.get(code, read);
      return written(read, value);
    }

    DynamicMapOf& map_;
    typename CodeMap<Value>::Place place_;
  };

  static constexpr std::size_t kBytes = std::is_empty_v<Value> ? 0 : sizeof(Value);

  // Arrays of no bytes have no elements: what stands for one is never read or written.
  static Value* at(void* values, std::size_t i) {
    if constexpr (kBytes == 0) return &nothing_;
    return static_cast<Value*>(values) + i;
  }
  static const Value* at(const void* values, std::size_t i) {
    if constexpr (kBytes == 0) return &nothing_;
    return static_cast<const Value*>(values) + i;
  }
  static Value value(const void* values, std::size_t i) {
    if constexpr (kBytes == 0) return Value{};
    return *at(values, i);
  }

  static bool written(const Value& read, void* value) {
    if constexpr (kBytes > 0) std::memcpy(value, &read, kBytes);
    return true;
  }

  static void fill_missing(Value* values, const bool* found, std::size_t count,
                           const void* missing) {
    Value fill;
    std::memcpy(&fill, missing, sizeof(fill));
    for (std::size_t i = 0; i < count; ++i) {
      if (!found[i]) values[i] = fill;
    }
  }

  // An operation, and what it is where the key is absent.
  struct Recorded {
    Recorded(Operation kind) : of_present(kind), of_absent(kind) {}
    Recorded(Operation kind, Operation absent) : of_present(kind), of_absent(absent) {}
    Operation of_present;
    Operation of_absent;
  };

  // Runs one batch under the lock: `run` on each block of its codes returns how many had an effect.
  // Counting must not slow down single keys: only one of the sample reads the clock, out of line,
  // as batches do. Inlined here, it made single finds 4% slower, by calls and registers to save.
  template <class Run>
  std::size_t each(Recorded operation, const KeyColumn& keys, const Run& run) {
    std::lock_guard lock(mutex_);
    return each_locked(operation, keys, run);
  }

  template <class Run>
  std::size_t each_locked(Recorded operation, const KeyColumn& keys, const Run& run) {
    if (keys.count != 1 || !activity_.passes(operation.of_present)) {
      return each_timed(operation, keys, run);
    }
    const auto code = first_code(keys);
    if (recording_) record(operation, &code, 1);
    return run(&code, std::size_t{0}, std::size_t{1});
  }

  // Runs one operation on one key, under the lock.
  template <class Run>
  bool one(Operation operation, std::uint64_t code, const Run& run) {
    if (!activity_.passes(operation)) {
      return each_timed(operation, {&code, 1, KeyType::uint64},
                        [&](auto*, auto, auto) { return std::size_t{run()}; }) == 1;
    }
    if (recording_) record(operation, &code, 1);
    return run();
  }

  template <class Run>
  [[gnu::noinline]] std::size_t each_timed(Recorded operation, const KeyColumn& keys,
                                           const Run& run) {
    typename Observer::Batch batch(activity_, operation.of_present, keys.count);
    std::size_t effective = 0;
    for_codes(keys, [&](const std::uint64_t* codes, std::size_t first, std::size_t count) {
      activity_.sample(operation.of_present, codes, count);
      if (recording_) record(operation, codes, count);
      effective += run(codes, first, count);
    });
    batch.done(effective);
    return effective;
  }

  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* values, bool* found) const {
    if (count > 1) return map_.get(codes, count, values, found);
    Value read{};
    found[0] = map_.get(codes[0], read);
    if constexpr (kBytes > 0) values[0] = read;
    return found[0];
  }

  void record(Recorded operation, const std::uint64_t* codes, std::size_t count) {
    Value unused{};
    for (std::size_t i = 0; i < count; ++i) {
      if (!recording_->selects(codes[i])) continue;
      const bool scans = operation.of_present == Operation::scan;
      const bool present = !scans && map_.get(codes[i], unused);
      recording_->add(present ? operation.of_present : operation.of_absent, codes[i], present);
    }
  }

  std::size_t erase_locked(const KeyColumn& keys) {
    return each_locked(Operation::erase, keys, [&](auto* codes, auto, auto count) {
      return count == 1 ? std::size_t{map_.erase(codes[0])} : map_.erase(codes, count);
    });
  }

  bool neighbour(std::uint64_t from, Neighbour which, std::uint64_t& code, Value& value) const {
    if (!which.own) {
      if (from == (which.up ? ~std::uint64_t{0} : 0)) return false;
      from = which.up ? from + 1 : from - 1;
    }
    return which.up ? map_.ceiling(from, code, value) : map_.floor(from, code, value);
  }

  std::size_t scan_locked(CodeRange range, std::size_t most, std::uint64_t* codes,
                          void* values) const {
    return scan_range(range, most, codes, [&](auto from, auto count, auto done) {
      return map_.scan(from, count, codes + done, at(values, done));
    });
  }

  std::size_t scan_down_locked(CodeRange range, std::size_t most, std::uint64_t* codes,
                               void* values) const {
    std::size_t count = 0;
    for (auto step = kFirstScan; count < most; step = std::min(4 * step, kLargestScan)) {
      const auto wanted = range.first == 0 ? most - count : std::min(step, most - count);
      const auto read = map_.scan_down(range.last, wanted, codes + count, at(values, count));
      count += read;
      const bool ended = read < wanted || codes[count - 1] <= range.first;
      while (count > 0 && codes[count - 1] < range.first) --count;
      if (ended) break;
      range.last = codes[count - 1] - 1;
    }
    return count;
  }

  inline static Value nothing_{};

  mutable ForkSafeLock<> mutex_;
  CodeMap<Value> map_;
  LeafSums sums_;
  Observer activity_;
  std::optional<Recording> recording_;
  std::uint64_t recordings_ = 0;  // that were begun: the number of the last
  bool yields_ = false;
};

}  // namespace detail

// Throws std::invalid_argument if `value_bytes` is not 0, 4 or 8, or a field of the configuration
// is out of range.
inline std::unique_ptr<DynamicMap> make_dynamic_map(std::size_t value_bytes,
                                                    const Configuration& configuration = {}) {
  configuration.validate();
  switch (value_bytes) {
    case 0:
      return std::make_unique<detail::DynamicMapOf<Nothing>>(configuration);
    case 4:
      return std::make_unique<detail::DynamicMapOf<std::uint32_t>>(configuration);
    case 8:
      return std::make_unique<detail::DynamicMapOf<std::uint64_t>>(configuration);
    default:
      throw std::invalid_argument("values have " + std::to_string(value_bytes) +
                                  " bytes, needs 0, 4 or 8");
  }
}

}  // namespace headrace::index
