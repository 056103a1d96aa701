// Orders of leaves whose entries have none, remembered from one scan to the next.
//
// A scan of a few entries of a hashed leaf has to sort all that the leaf has; the next scan of the
// leaf, if it is unchanged, reads its entries by their order: two bytes for each entry, and each
// sixteenth code. Only leaves that are scanned have an order, and a change of a leaf drops it, so
// maps that are never scanned take neither time nor memory for it.
//
// A scan only reads the map, so several threads may scan at once: an order is published whole, by
// one atomic word, and then stays as it is until a change, beside which there is no scan
// (sharing.hpp). Maps with readers beside their writer keep no orders.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "index/memory/memory.hpp"
#include "index/memory/sharing.hpp"
#include "index/memory/word.hpp"
#include "index/tree/unordered.hpp"

namespace headrace::index {

// The order of one leaf's entries: a view of words that LeafOrders owns. These are the leaf, the
// count of entries, each sixteenth code, and the places of all entries in ascending order of codes.
class LeafOrder {
 public:
  static constexpr std::size_t kGroup = 16;  // entries to a stored code
  static constexpr std::size_t kMostPlaces = std::size_t{1} << 16;

  static std::size_t words_for(std::size_t count) {
    return kHeaderWords + groups(count) + (count + 3) / 4;
  }

  explicit LeafOrder(std::uint64_t* words) : words_(words) {}

  // `pairs`: codes and places, ascending.
  template <class Pair>
  void write(Word leaf, const Pair* pairs, std::size_t count) const {
    words_[0] = leaf.bits();
    words_[1] = count;
    for (std::size_t i = 0; i < count; i += kGroup) codes()[i / kGroup] = pairs[i].first;
    for (std::size_t i = 0; i < count; ++i) new (places() + i) std::uint16_t(pairs[i].second);
  }

  Word leaf() const { return Word(words_[0]); }
  std::size_t count() const { return words_[1]; }
  std::uint16_t place(std::size_t i) const { return places()[i]; }

  // Appends the lowest `most` entries with codes of at least `from`. Returns whether these are all.
  template <class LeafType, class Value>
  bool append_lowest(const LeafType& entries, std::uint64_t from, std::size_t most,
                     EntryBuffer<Value>& to) const {
    const auto group = group_of(from);
    const auto* const ordered = places();
    // Which entry is the first is known only when its group has been read: all that may be copied
    // is fetched beside the group.
    for (auto i = group, last = std::min(group + kGroup + most, count()); i < last; ++i) {
      __builtin_prefetch(entries.entry_at(ordered[i]));
    }
    const auto first = first_from(entries, group, from);
    const auto end = std::min(first + most, count());
    auto buffer = to;  // in registers
    for (auto i = first; i < end; ++i) {
      buffer.append(entries.code_at(ordered[i]), entries.value_at(ordered[i]));
    }
    to = buffer;
    return end == count();
  }

 private:
  static constexpr std::size_t kHeaderWords = 2;
  static std::size_t groups(std::size_t count) { return (count + kGroup - 1) / kGroup; }
  std::uint64_t* codes() const { return words_ + kHeaderWords; }
  std::uint16_t* places() const {
    return reinterpret_cast<std::uint16_t*>(codes() + groups(count()));
  }

  // Both without branches on codes, which cannot be predicted; and the entries of a group are read
  // side by side, not one after the other as in a search by halves, each step of which may wait for
  // memory.

  // The first entry of the group that has the lowest code of at least `from`, or of the one after.
  std::size_t group_of(std::uint64_t from) const {
    const auto all = groups(count());
    std::size_t group = 0;  // the first whose lowest code is at least `from`
    for (std::size_t i = 0; i < all; ++i) group += codes()[i] < from;
    return group == 0 ? 0 : (group - 1) * kGroup;
  }
  // The first entry of at least `from`.
  template <class LeafType>
  std::size_t first_from(const LeafType& entries, std::size_t group, std::uint64_t from) const {
    auto first = group;
    const auto end = std::min(group + kGroup, count());
    for (auto i = group; i < end; ++i) first += entries.code_at(places()[i]) < from;
    return first;
  }

  std::uint64_t* words_;
};

// The orders of a map's leaves: a table of sets, one of which a leaf's address names. An order that
// finds its set full is not kept.
template <class Allocator>
class LeafOrders {
  template <class T>
  using Rebound = typename std::allocator_traits<Allocator>::template rebind_alloc<T>;
  using Words = Rebound<std::uint64_t>;

 public:
  LeafOrders() = default;
  LeafOrders(const LeafOrders&) = delete;
  LeafOrders& operator=(const LeafOrders&) = delete;
  // The owner calls `clear` before.
  ~LeafOrders() = default;

  void swap(LeafOrders& other) noexcept {
    auto* const table = table_.load(std::memory_order_relaxed);
    table_.store(other.table_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    other.table_.store(table, std::memory_order_relaxed);
  }

  bool any() const { return table_.load(std::memory_order_relaxed) != nullptr; }

  // Of the table and all orders.
  std::size_t bytes() const {
    const auto* const table = table_.load(std::memory_order_acquire);
    return table == nullptr ? 0 : table->bytes.load(std::memory_order_relaxed);
  }

  // Calls `action` with each order.
  template <class Action>
  void each(const Action& action) const {
    const auto* const table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return;
    for (std::size_t set = 0; set < table->count; ++set) {
      for (const auto& kept : table->sets[set].orders) {
        if (const auto word = kept.load(std::memory_order_acquire); word != 0) action(order(word));
      }
    }
  }

  // Calls `action` with the order of a leaf, made first if need be. `leaves`: about as many has the
  // map. False: it is not kept, and was not called.
  template <class LeafType, class Action>
  bool with_order(Word word, const LeafType& entries, std::size_t leaves,
                  const Allocator& allocator, const Action& action) {
    auto* table = table_.load(std::memory_order_acquire);
    if (table == nullptr && (table = add_table(leaves, allocator)) == nullptr) return false;
    const Hash hash(word, *table);
    auto& set = table->sets[hash.set];
    for (const auto& kept : set.orders) {
      const auto found = kept.load(std::memory_order_acquire);
      if (is_of(found, word, hash.tag)) {
        action(order(found));
        return true;
      }
    }
    const auto made = add(word, entries, *table, set, hash.tag, allocator);
    if (made == 0) return false;
    action(order(made));
    return true;
  }

  // Of a leaf that changes, or ends.
  void drop(Word word, const Allocator& allocator) noexcept {
    auto* const table = table_.load(std::memory_order_relaxed);
    const Hash hash(word, *table);
    for (auto& kept : table->sets[hash.set].orders) {
      const auto found = kept.load(std::memory_order_relaxed);
      if (!is_of(found, word, hash.tag)) continue;
      kept.store(0, std::memory_order_relaxed);
      release(*table, found, allocator);
    }
  }

  // True: the map has far more leaves than the table was made for.
  bool outgrown(std::size_t leaves) const {
    const auto* const table = table_.load(std::memory_order_relaxed);
    return table != nullptr && leaves > 2 * kLeavesOfSet * table->count;
  }

  void clear(const Allocator& allocator) noexcept {
    auto* const table = table_.exchange(nullptr, std::memory_order_relaxed);
    if (table == nullptr) return;
    for (std::size_t set = 0; set < table->count; ++set) {
      for (auto& kept : table->sets[set].orders) {
        if (const auto found = kept.load(std::memory_order_relaxed); found != 0) {
          release(*table, found, allocator);
        }
      }
    }
    release_table(table, allocator);
  }

 private:
  // An order's address, and above it some bits of its leaf's hash.
  using Kept = std::atomic<std::uint64_t>;
  static constexpr int kTagShift = 48;
  static constexpr std::uint64_t kAddress = (std::uint64_t{1} << kTagShift) - 1;
  static constexpr std::size_t kOrdersOfSet = kLineBytes / sizeof(Kept);
  static constexpr std::size_t kLeavesOfSet = 2;  // on average: few sets are full then

  struct alignas(kLineBytes) Set {
    Kept orders[kOrdersOfSet];
  };
  struct Table {
    Set* sets;
    std::size_t count;  // a power of two
    std::atomic<std::size_t> bytes;
  };
  struct Hash {
    std::size_t set;
    std::uint64_t tag;
    Hash(Word word, const Table& table) {
      const auto line = reinterpret_cast<std::uintptr_t>(word.to()) / kLineBytes;
      const auto hash = static_cast<std::uint64_t>(line) * 0x9e37'79b9'7f4a'7c15;
      tag = hash >> kTagShift;
      set = hash >> 16 & (table.count - 1);
    }
  };

  static LeafOrder order(std::uint64_t kept) {
    return LeafOrder(reinterpret_cast<std::uint64_t*>(kept & kAddress));
  }

  static bool is_of(std::uint64_t kept, Word leaf, std::uint64_t tag) {
    return kept != 0 && kept >> kTagShift == tag && order(kept).leaf() == leaf;
  }

  // Null: there is no memory for it.
  Table* add_table(std::size_t leaves, const Allocator& allocator) noexcept {
    Table* table = nullptr;
    try {
      table = make_table(std::bit_ceil(leaves / kLeavesOfSet + 1), allocator);
    } catch (...) {  // NOLINT: scans sort each leaf then
      return nullptr;
    }
    Table* first = nullptr;
    if (table_.compare_exchange_strong(first, table, std::memory_order_acq_rel)) return table;
    release_table(table, allocator);  // another thread was faster
    return first;
  }

  static Table* make_table(std::size_t count, const Allocator& allocator) {
    Rebound<Set> sets_allocator(allocator);
    Rebound<Table> table_allocator(allocator);
    auto* const sets = std::to_address(sets_allocator.allocate(count));
    for (std::size_t set = 0; set < count; ++set) new (sets + set) Set{};
    try {
      auto* const table = std::to_address(table_allocator.allocate(1));
      return new (table) Table{sets, count, sizeof(Table) + count * sizeof(Set)};
    } catch (...) {
      sets_allocator.deallocate(sets, count);
      throw;
    }
  }

  static void release_table(Table* table, const Allocator& allocator) noexcept {
    Rebound<Set>(allocator).deallocate(table->sets, table->count);
    Rebound<Table>(allocator).deallocate(table, 1);
  }

  // The order of a leaf, kept in a set; 0: there is no room or no memory for it.
  template <class LeafType>
  static std::uint64_t add(Word word, const LeafType& entries, Table& table, Set& set,
                           std::uint64_t tag, const Allocator& allocator) noexcept {
    const auto free = [](const Kept& kept) { return kept.load(std::memory_order_relaxed) == 0; };
    if (std::none_of(std::begin(set.orders), std::end(set.orders), free)) return 0;
    std::uint64_t made = 0;
    try {
      made = tag << kTagShift | reinterpret_cast<std::uintptr_t>(make(word, entries, allocator));
    } catch (...) {  // NOLINT: as above
      return 0;
    }
    const auto bytes = LeafOrder::words_for(order(made).count()) * sizeof(std::uint64_t);
    table.bytes.fetch_add(bytes, std::memory_order_relaxed);
    // All threads try the places in one order, and no place becomes free beside a scan: so one that
    // makes an order of the same leaf meanwhile tries the same place.
    for (auto& kept : set.orders) {
      std::uint64_t found = 0;
      if (kept.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made;
      if (is_of(found, word, tag)) {
        release(table, made, allocator);
        return found;
      }
    }
    release(table, made, allocator);
    return 0;
  }

  template <class LeafType>
  static std::uint64_t* make(Word word, const LeafType& entries, const Allocator& allocator) {
    UnorderedEntries<std::uint16_t, Allocator> unordered(entries.capacity(), allocator);
    unordered.gather_places(entries);
    const auto* const pairs = unordered.sort_all();
    const auto count = unordered.count();
    Words words_allocator(allocator);
    auto* const words = std::to_address(words_allocator.allocate(LeafOrder::words_for(count)));
    LeafOrder(words).write(word, pairs, count);
    return words;
  }

  static void release(Table& table, std::uint64_t kept, const Allocator& allocator) noexcept {
    const auto words = LeafOrder::words_for(order(kept).count());
    table.bytes.fetch_sub(words * sizeof(std::uint64_t), std::memory_order_relaxed);
    Words(allocator).deallocate(reinterpret_cast<std::uint64_t*>(kept & kAddress), words);
  }

  std::atomic<Table*> table_{nullptr};
};

// Of maps that keep none.
struct NoLeafOrders {};

// True of leaves whose entries are in no order, and have places.
template <class LeafType>
constexpr bool kHasPlaces = requires(const LeafType& leaf) { leaf.code_at(std::size_t{0}); } &&
                            !requires(const LeafType& leaf) { leaf.place_after(0U); };

}  // namespace headrace::index
