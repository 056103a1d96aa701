// A map that can be read and changed before its tree is built from a snapshot.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "index/durable/durable_merge.hpp"
#include "index/durable/snapshot.hpp"
#include "index/memory/sharing.hpp"

namespace headrace::index {

// Until a thread has built the tree, lookups are answered from the snapshot, and changes are kept
// in a second map; then these are moved into the tree, a few with every group of changes. `Map`: as
// in durable.hpp, also for threads.
template <class Value, class Map>
class LoadingMap {
  static_assert(std::is_trivially_copyable_v<Value> && std::is_default_constructible_v<Value>,
                "values are moved as bytes: they need to be trivially copyable, with a default");
  static_assert(alignof(Value) <= 16, "values need an alignment of at most 16 bytes");

 public:
  using Operation = change_log::Operation;

  // `tree` is empty. `base` (null: no rows) is built into it in the background, or before this
  // returns.
  LoadingMap(std::shared_ptr<const Snapshot> base, Map tree, bool background)
      : base_(std::move(base)), tree_(std::move(tree)) {
    size_ = base_ ? base_->size() : 0;
    if (size_ == 0) {
      built_ = true;
    } else if (!background) {
      build_from_base();
      base_.reset();
    } else {
      changes_used_ = true;
      building_ = std::async(std::launch::async, [this] { build_from_base(); });
    }
  }
  LoadingMap(const LoadingMap&) = delete;
  LoadingMap& operator=(const LoadingMap&) = delete;
  // Waits for the thread, which verifies no more rows, and builds no tree of them.
  ~LoadingMap() { ended_ = true; }

  bool get(std::uint64_t code, Value& out) const {
    if (changes_used_.load(std::memory_order_acquire)) {
      Entry entry;
      if (changes_.get(code, entry)) {
        if (entry.present) out = entry.value;
        return entry.present;
      }
    }
    // Loaded after the lookup above: what was moved away from there is in the tree.
    if (built_.load(std::memory_order_acquire)) return tree_->get(code, out);
    const auto* value = base_->find(code);
    if (value) copy(out, value);
    return value != nullptr;
  }

  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    if (in_tree()) return tree_->get(codes, count, out, found);
    std::size_t hits = 0;
    for (std::size_t i = 0; i < count; ++i) hits += found[i] = get(codes[i], out[i]);
    return hits;
  }

  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    return in_tree() ? tree_->scan(from, most, codes, values)
                     : scan_both(from, most, codes, values);
  }

  std::size_t size() const { return size_.load(std::memory_order_relaxed); }

  // The tree has every row.
  bool in_tree() const {
    return !changes_used_.load(std::memory_order_acquire) && built_.load(std::memory_order_acquire);
  }

  // Throws what stopped the tree from being built: DamageError or std::bad_alloc.
  void check() {
    if (building_.valid() && building_.wait_for(std::chrono::seconds(0)) == kReady) collect();
    if (failure_) std::rethrow_exception(failure_);
  }

  // Applies the changes that are younger than the base; call it once, before any other change.
  void load(const std::vector<MergedChanges::Change>& changes) {
    if (in_tree()) {
      for (const auto& change : changes) change_tree(change.code, entry_of(change.value));
      size_.store(tree_->size(), std::memory_order_relaxed);
      return;
    }
    std::vector<std::uint64_t> codes;
    std::vector<Entry> entries;
    auto count = base_->size();
    for (const auto& change : changes) {
      codes.push_back(change.code);
      entries.push_back(entry_of(change.value));
      auto row = base_->lower_bound(change.code);
      count += entries.back().present;
      count -= row < base_->size() && base_->code(row) == change.code;
    }
    changes_.build(codes.data(), entries.data(), codes.size());
    size_.store(count, std::memory_order_relaxed);
  }

  // Applies a group of changes.
  void apply(const Changes& changes) {
    if (!in_tree()) move_changes(16 * changes.size() + 1024);
    if (in_tree()) {
      release_base();
      return apply_runs(changes);
    }
    changes.for_each([this](Operation, std::uint64_t code, const std::byte* value) {
      apply(code, entry_of(value));
    });
  }

  // The tree, once it has every row. Throws what stopped it from being built.
  const Map& wait() {
    if (building_.valid()) collect();
    if (failure_) std::rethrow_exception(failure_);
    move_changes(std::numeric_limits<std::size_t>::max());
    release_base();
    return *tree_;
  }

  // Replaces all rows; the tree must have been waited for.
  void replace(Map tree) {
    tree_.emplace(std::move(tree));
    base_.reset();
    size_.store(tree_->size(), std::memory_order_relaxed);
  }

 private:
  static constexpr auto kReady = std::future_status::ready;
  static constexpr std::size_t kWindow = 256;  // rows that are merged or moved at once
  static constexpr std::uint64_t kVerifiedRows = 1U << 20;

  // A change that is not in the tree.
  struct Entry {
    Value value;
    bool present;  // false: erased
  };

  // A map's type with another type of values.
  template <class M, class Other>
  struct Rebound;
  template <template <class, class...> class M, class V, class... Rest, class Other>
  struct Rebound<M<V, Rest...>, Other> {
    using type = M<Other, Rest...>;
  };

  // Once the tree has every row: a snapshot that was replaced keeps its place on the disk while it
  // is mapped. Readers beside the writer may still be in it.
  void release_base() {
    if constexpr (!requires { requires Map::kShared; }) base_.reset();
  }

  static void copy(auto& to, const std::byte* from) {
    if constexpr (value_bytes<Value> > 0) std::memcpy(&to, from, sizeof to);
  }

  static Entry entry_of(const std::byte* value) {
    Entry entry{{}, value != nullptr};
    if (value) copy(entry.value, value);
    return entry;
  }

  void build_from_base() {
    for (std::uint64_t row = 0; row < base_->size(); row += kVerifiedRows) {
      if (ended_) return;
      base_->verify(row, std::min(row + kVerifiedRows, base_->size()));
    }
    base_->verify();
    tree_->build(base_->codes(), reinterpret_cast<const Value*>(base_->values()), base_->size());
    built_.store(true, std::memory_order_release);
  }

  void collect() {
    try {
      building_.get();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Applies one change.
  void apply(std::uint64_t code, const Entry& entry) {
    if (in_tree()) {
      change_tree(code, entry);
      return size_.store(tree_->size(), std::memory_order_relaxed);
    }
    Value held{};
    auto before = get(code, held);
    if (built_.load(std::memory_order_acquire)) {
      change_tree(code, entry);
      changes_.erase(code);
    } else {
      changes_.insert_or_assign(code, entry);
    }
    size_.store(size() + entry.present - before, std::memory_order_relaxed);
  }

  void change_tree(std::uint64_t code, const Entry& entry) {
    if (entry.present) {
      tree_->insert_or_assign(code, entry.value);
    } else {
      tree_->erase(code);
    }
  }

  // Moves changes into the tree, at least `most` if there are so many.
  void move_changes(std::size_t most) {
    if (!changes_used_ || !built_.load(std::memory_order_acquire)) return;
    std::vector<std::uint64_t> codes(kWindow);
    std::vector<Entry> entries(kWindow);
    for (std::size_t moved = 0; moved < most;) {
      auto count = changes_.scan(0, kWindow, codes.data(), entries.data());
      for (std::size_t i = 0; i < count; ++i) {
        change_tree(codes[i], entries[i]);  // a reader must find it in one of them
        changes_.erase(codes[i]);
      }
      moved += count;
      if (count == kWindow) continue;
      changes_used_.store(false, std::memory_order_release);  // readers may still be in the base
      return;
    }
  }

  // Puts that follow each other are handed to the tree together.
  void apply_runs(const Changes& changes) {
    run_codes_.clear();
    run_values_.clear();
    auto end_run = [this] {
      tree_->insert_or_assign(run_codes_.data(), value_array<Value>(run_values_),
                              run_codes_.size());
      run_codes_.clear();
      run_values_.clear();
    };
    changes.for_each([&](Operation, std::uint64_t code, const std::byte* value) {
      if (value) {
        run_codes_.push_back(code);
        copy(run_values_.emplace_back(), value);
      } else {
        if (!run_codes_.empty()) end_run();
        tree_->erase(code);
      }
    });
    if (!run_codes_.empty()) end_run();
    size_.store(tree_->size(), std::memory_order_relaxed);
  }

  std::size_t scan_base(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                        Value* values) const {
    if (built_.load(std::memory_order_acquire)) return tree_->scan(from, most, codes, values);
    auto row = base_->lower_bound(from);
    auto count = static_cast<std::size_t>(std::min<std::uint64_t>(most, base_->size() - row));
    base_->verify(row, row + count);
    for (std::size_t i = 0; i < count; ++i) {
      codes[i] = base_->codes()[row + i];
      copy(values[i], base_->values() + (row + i) * value_bytes<Value>);
    }
    return count;
  }

  std::size_t scan_both(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                        Value* values) const {
    constexpr auto kLast = std::numeric_limits<std::uint64_t>::max();
    std::vector<std::uint64_t> changed_codes(kWindow), base_codes(kWindow);
    std::vector<Entry> changed(kWindow);
    std::vector<Element<Value>> base(kWindow);
    std::size_t count = 0;
    while (count < most) {
      // Changes are read first: what is moved between the two reads is then in the tree.
      auto changes = changes_.scan(from, kWindow, changed_codes.data(), changed.data());
      auto rows = scan_base(from, kWindow, base_codes.data(), value_array<Value>(base));
      // Up to here, both windows have everything.
      auto last = std::min(changes == kWindow ? changed_codes.back() : kLast,
                           rows == kWindow ? base_codes.back() : kLast);
      std::size_t change = 0, row = 0;
      while (count < most) {
        auto has_change = change < changes && changed_codes[change] <= last;
        auto has_row = row < rows && base_codes[row] <= last;
        if (!has_change && !has_row) break;
        if (!has_change || (has_row && base_codes[row] < changed_codes[change])) {
          codes[count] = base_codes[row];
          values[count++] = base[row++];
          continue;
        }
        if (has_row && base_codes[row] == changed_codes[change]) ++row;
        if (changed[change].present) {
          codes[count] = changed_codes[change];
          values[count++] = changed[change].value;
        }
        ++change;
      }
      if (last == kLast) break;
      from = last + 1;
    }
    return count;
  }

  std::shared_ptr<const Snapshot> base_;
  std::optional<Map> tree_;  // always there: maps may be without assignment
  typename Rebound<Map, Entry>::type changes_;
  std::atomic<bool> changes_used_{false};
  std::atomic<bool> built_{false};
  std::atomic<bool> ended_{false};
  std::atomic<std::size_t> size_{0};
  std::vector<std::uint64_t> run_codes_;
  std::vector<Element<Value>> run_values_;
  std::exception_ptr failure_;
  std::future<void> building_;  // last: its thread uses the others
};

}  // namespace headrace::index
