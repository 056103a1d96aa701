// Choice of an inner node: the linear model that makes lookups cheapest, or separators.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "index/tree/node.hpp"

namespace headrace::index {

// What a model node for sorted codes is fitted to.
struct FitTask {
  const std::uint64_t* codes;
  std::size_t count;
  std::size_t leaf_keys;     // keys of a leaf
  std::size_t most_slots;    // a power of two or any other number from 2
  std::uint32_t* histogram;  // working memory for `most_slots` numbers
};

struct Fit {
  bool linear = false;  // false: every model leaves too many keys in one slot
  Model model;
};

namespace detail {

// Nanoseconds of a lookup, in round numbers of today's servers; only their ratios matter.
constexpr double kLevelCost = 30;            // one more inner node: two lines of a larger cache
constexpr double kCostOfByteForEachKey = 3;  // memory of slots

// Bytes of a cache, or those of a usual server's where the system tells none.
inline double cache_bytes(int name, double usual) {
  const auto told = sysconf(name);
  return told > 0 ? static_cast<double>(told) : usual;
}

// Of the levels of caches. No local statics: see process.hpp.
#ifdef _SC_LEVEL1_DCACHE_SIZE  // of glibc
inline const double kFirstCacheBytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32e3);
inline const double kSecondCacheBytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1e6);
inline const double kLastCacheBytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 16e6);
#else
constexpr double kFirstCacheBytes = 32e3, kSecondCacheBytes = 1e6, kLastCacheBytes = 16e6;
#endif

inline double slot_access_cost(double bytes) {
  return bytes <= kFirstCacheBytes    ? 1
         : bytes <= kSecondCacheBytes ? 4
         : bytes <= kLastCacheBytes   ? 15
                                      : 40;
}

// Expected levels of inner nodes under a slot with so many keys.
inline double levels_below(double keys, double leaf_keys) {
  return keys <= leaf_keys ? 0 : 1 + std::log2(keys / leaf_keys) / 6;
}

struct Judged {
  double cost;
  double largest;  // keys of the fullest slot
};

inline Judged judge(const FitTask& task, std::size_t slots, double keys_of_sample) {
  Judged judged{0, 0};
  const auto leaf_keys = static_cast<double>(task.leaf_keys) / 2;  // so that a leaf has two slots
  const auto count = static_cast<double>(task.count);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    if (task.histogram[slot] == 0) continue;
    const auto keys = task.histogram[slot] * keys_of_sample;
    judged.largest = std::max(judged.largest, keys);
    judged.cost += keys / count * levels_below(keys, leaf_keys) * kLevelCost;
  }
  const auto bytes = static_cast<double>(slots) * 8;
  judged.cost += slot_access_cost(bytes) + bytes / count * kCostOfByteForEachKey;
  return judged;
}

}  // namespace detail

// Slots worth trying for so many codes: some for each leaf.
inline std::size_t slots_to_try(std::size_t count, std::size_t leaf_keys, std::size_t most) {
  const auto useful = std::bit_ceil(8 * (count / leaf_keys) + 2);
  return std::min(most, std::max<std::size_t>(useful, 4));
}

// Models between the codes at some quantiles (codes outside of them go to the first or last slot),
// with every width of slots that is a power of two. Needs at least two codes.
inline Fit fit(const FitTask& task) {
  Fit best;
  double best_cost = 0;
  // A sample with some codes for each leaf is enough.
  const auto stride = task.count <= 65'536 ? 1 : std::max<std::size_t>(1, task.leaf_keys / 8);
  const auto most_slots = slots_to_try(task.count, task.leaf_keys, task.most_slots);
  std::size_t previous_trim = task.count;
  for (const std::size_t share :
       {std::size_t{0}, std::size_t{4096}, std::size_t{256}, std::size_t{32}}) {
    const auto trim = share == 0 ? 0 : task.count / share;
    if (trim == previous_trim) continue;
    previous_trim = trim;
    Model model;
    model.base = task.codes[trim];
    const auto span = task.codes[task.count - 1 - trim] - model.base;
    if (span == 0) continue;
    while ((span >> model.shift) >= most_slots) ++model.shift;
    model.last = static_cast<std::uint32_t>(span >> model.shift);
    std::fill_n(task.histogram, model.slots(), 0U);
    for (std::size_t i = 0; i < task.count; i += stride)
      ++task.histogram[model.slot(task.codes[i])];
    for (;;) {
      const auto judged = detail::judge(task, model.slots(), static_cast<double>(stride));
      const auto bound =
          std::max(static_cast<double>(task.count) / 4, static_cast<double>(task.leaf_keys));
      if (judged.largest <= bound && (!best.linear || judged.cost < best_cost)) {
        best = {true, model};
        best_cost = judged.cost;
      }
      if (model.last <= 1) break;
      for (std::size_t slot = 0; slot <= model.last / 2; ++slot) {
        task.histogram[slot] =
            task.histogram[2 * slot] + (2 * slot < model.last ? task.histogram[2 * slot + 1] : 0);
      }
      model.last /= 2;
      ++model.shift;
    }
  }
  return best;
}

}  // namespace headrace::index
