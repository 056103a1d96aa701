// Entries sorted for bulk loading: by radix, in parts by several threads, then merged.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "index/memory/sharing.hpp"

namespace headrace::index {

template <class Value>
struct Entry {
  std::uint64_t code;
  [[no_unique_address]] Value value;
};

namespace detail {

// Stable, by the eight bytes of the code; a byte that all codes share costs one pass of counting.
template <class Value>
void radix_sort(Entry<Value>* entries, Entry<Value>* other, std::size_t count) {
  auto* from = entries;
  auto* to = other;
  for (int shift = 0; shift < 64; shift += 8) {
    std::array<std::size_t, 257> starts{};
    for (std::size_t i = 0; i < count; ++i) ++starts[(from[i].code >> shift & 255) + 1];
    if (std::find(starts.begin(), starts.end(), count) != starts.end()) continue;
    for (std::size_t digit = 0; digit < 256; ++digit) starts[digit + 1] += starts[digit];
    for (std::size_t i = 0; i < count; ++i) to[starts[from[i].code >> shift & 255]++] = from[i];
    std::swap(from, to);
  }
  if (from != entries) std::copy_n(from, count, entries);
}

template <class Value>
bool earlier(const Entry<Value>& a, const Entry<Value>& b) {
  return a.code < b.code;
}

// Runs `action(i)` for i below `count`, each in a thread if the system gives one.
template <class Action>
void in_threads(std::size_t count, const Action& action) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  std::size_t i = 1;
  try {
    for (; i < count; ++i) threads.emplace_back(action, i);
  } catch (const std::exception&) {  // the system's, or that memory has ended
    for (; i < count; ++i) action(i);
  }
  if (count > 0) action(0);
  for (auto& thread : threads) thread.join();
}

}  // namespace detail

// Sorts by code, stable. `other` is working memory of `count` entries.
template <class Value>
void sort_entries(Entry<Value>* entries, Entry<Value>* other, std::size_t count, int threads) {
  std::size_t parts = 1;
  while (parts * 2 <= static_cast<std::size_t>(std::max(threads, 1)) && count / parts > 65'536) {
    parts *= 2;
  }
  const auto bound = [&](std::size_t part) {
    return count / parts * part + count % parts * part / parts;
  };
  detail::in_threads(parts, [&](std::size_t part) {
    const auto first = bound(part);
    detail::radix_sort(entries + first, other + first, bound(part + 1) - first);
  });
  for (std::size_t width = 1; width < parts; width *= 2) {
    detail::in_threads(parts / (2 * width), [&](std::size_t pair) {
      const auto first = bound(2 * width * pair);
      const auto middle = bound(2 * width * pair + width);
      const auto end = bound(2 * width * (pair + 1));
      std::merge(entries + first, entries + middle, entries + middle, entries + end, other + first,
                 detail::earlier<Value>);
      std::copy(other + first, other + end, entries + first);
    });
  }
}

// Entries with ascending codes, of equal ones the last: as given, or copied and sorted.
template <class Value, class Allocator>
class SortedInput {
  template <class T>
  using Vector =
      std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

 public:
  SortedInput(const Entries<Value>& given, int threads, const Allocator& allocator)
      : codes_(allocator), values_(allocator), entries_(given) {
    const auto not_ascending = [](std::uint64_t a, std::uint64_t b) { return a >= b; };
    const auto* end = given.codes + given.count;
    if (given.count == 0 || std::adjacent_find(given.codes, end, not_ascending) == end) return;
    Vector<Entry<Value>> sorted(given.count, allocator);
    for (std::size_t i = 0; i < given.count; ++i) sorted[i] = {given.codes[i], given.value(i)};
    {
      Vector<Entry<Value>> other(given.count, allocator);
      sort_entries(sorted.data(), other.data(), given.count, threads);
    }
    keep_last(sorted);
  }

  const Entries<Value>& entries() const { return entries_; }

 private:
  void keep_last(const Vector<Entry<Value>>& sorted) {
    codes_.resize(sorted.size());
    if constexpr (value_bytes<Value> != 0) values_.resize(sorted.size());
    EntryBuffer<Value> kept{codes_.data(), value_array<Value>(values_), 0};
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (i + 1 < sorted.size() && sorted[i + 1].code == sorted[i].code) continue;
      kept.append(sorted[i].code, sorted[i].value);
    }
    entries_ = kept;
  }

  Vector<std::uint64_t> codes_;
  Vector<Element<Value>> values_;
  Entries<Value> entries_;
};

}  // namespace headrace::index
