// Construction of a minimal perfect hash function: pilots by trial, larger buckets first.
//
// Its time is bounded on any set of codes: at most 254 pilots are tried for a bucket, whose codes
// are listed if all fail. Before that, buckets that the model fills too much for the share of
// the table that is taken when their turn comes are redirected to spare buckets by hash; a model
// that would redirect more than a tenth of the codes is given up for buckets by hash.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "index/leaves/perfect_hash.hpp"

namespace headrace::index {

// How the codes of a bucket are brought together where they are not neighbours already: by
// counting, or by sorting pairs of bucket and hash as the paper of PTHash does (for comparison).
enum class Grouping : std::uint8_t { kCounting, kSorting };

struct PerfectOptions {
  BucketChoice choice = BucketChoice::kModel;
  Grouping grouping = Grouping::kCounting;
  std::uint32_t codes_per_bucket_x16 = 32;  // mean codes per bucket, times 16
  std::uint32_t free_per_1024 = 32;         // table positions past n, per 1,024 codes
};

namespace perfect {
template <class T, class Allocator>
using Vector = std::vector<T, typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;
}

// A function with tables of its own.
template <class Allocator = std::allocator<std::byte>>
struct PerfectTables {
  PerfectHash function;
  perfect::Vector<std::byte, Allocator> tables;

  std::uint32_t position(std::uint64_t code) const {
    return function.position(code, tables.data());
  }
  // Constants and tables, per code.
  double bits_per_code() const {
    return 8.0 * static_cast<double>(sizeof(PerfectHash) + tables.size()) / function.codes;
  }
};

namespace perfect {

// One construction. Distinct codes; ascending if buckets are chosen by the model.
template <class Allocator>
class Build {
  template <class T>
  using Vector = perfect::Vector<T, Allocator>;

 public:
  Build(const std::uint64_t* codes, std::size_t count, const PerfectOptions& options,
        const Allocator& allocator)
      : codes_(codes),
        count_(static_cast<std::uint32_t>(count)),
        options_(options),
        allocator_(allocator) {
    if (count == 0 || count > kMostPerfectCodes) {
      throw std::invalid_argument("perfect hash of " + std::to_string(count) +
                                  " codes: it needs 1 to 65536");
    }
  }

  PerfectTables<Allocator> run() {
    made_.codes = count_;
    made_.table = count_ == 1 ? 1 : count_ + 1 + count_ * options_.free_per_1024 / 1'024;
    hashes_.resize(count_);
    for (std::uint32_t i = 0; i < count_; ++i) hashes_[i] = mix(codes_[i]);
    if (options_.choice == BucketChoice::kHash || !choose_by_model()) choose_by_hash();
    pilots_.resize(std::size_t{made_.buckets.count} + made_.spare);
    taken_.assign(made_.table / 64 + 1, 0);
    search_all();
    list_codes();
    return {made_, tables()};
  }

 private:
  // A bucket is redirected when a pilot is expected to fit in one of more than e^4 trials.
  static constexpr double kLogTrials = 4.0;
  // PTHash's split: 60% of the codes into 30% of the buckets.
  static std::uint32_t dense_of(std::uint32_t buckets) { return std::max(1U, buckets * 3 / 10); }

  std::uint32_t bucket_count() const {
    return std::max(
        2U, (count_ * 16 + options_.codes_per_bucket_x16 - 1) / options_.codes_per_bucket_x16);
  }
  static std::uint64_t multiplier(std::uint32_t buckets, Wide span) {
    auto found = (static_cast<Wide>(buckets) << 64) / span;
    return found >> 64 != 0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(found);
  }

  void choose_by_hash() {
    auto count = bucket_count();
    auto dense = dense_of(count);
    constexpr auto kSplit = static_cast<std::uint64_t>(0x1p64 * 0.6);
    auto rest = (static_cast<Wide>(1) << 64) - kSplit;
    made_.buckets = {
        {{0, multiplier(dense, kSplit)}, {kSplit, multiplier(count - dense, rest)}}, dense, count};
    made_.by_model = 0;
    made_.spare = 0;
    starts_.assign(count + 1, 0);
    if (options_.grouping == Grouping::kSorting) {
      group_by_sorting();
    } else {
      group(hashes_, 0, [this](std::uint64_t hash) { return made_.buckets.of(hash); });
    }
  }

  // Of the whole range of codes, and of the middle 31/32 (outliers lie outside), the model that
  // redirects fewer codes; false: both redirect more than a tenth.
  bool choose_by_model() {
    if (count_ < 8) return false;
    made_.by_model = 1;
    fit(0, count_ - 1);
    auto redirected = count_buckets();
    if (redirected > count_ / 16) {
      auto whole = made_.buckets;
      fit(count_ / 64, count_ - 1 - count_ / 64);
      auto middle = count_buckets();
      if (redirected <= middle) {
        made_.buckets = whole;
        count_buckets();
      } else {
        redirected = middle;
      }
    }
    if (redirected > count_ / 10) return false;
    redirect(redirected);
    return true;
  }

  void fit(std::uint32_t first, std::uint32_t last) {
    auto count = bucket_count();
    auto dense = dense_of(count);
    auto low = codes_[first];
    auto middle = codes_[first + static_cast<std::uint32_t>((last - first) * 0.6)];
    auto high = codes_[last];
    made_.buckets = {{{low, multiplier(dense, std::max<Wide>(1, middle - low))},
                      {middle, multiplier(count - dense, static_cast<Wide>(high - middle) + 1)}},
                     dense,
                     count};
  }

  // Sets starts_ to the first code of every bucket, and kept_[s] to how many buckets of s codes
  // are searched before the rest are redirected. Returns how many codes are redirected.
  std::uint32_t count_buckets() {
    auto count = made_.buckets.count;
    starts_.assign(count + 1, 0);
    std::uint32_t bucket = 0;
    for (std::uint32_t i = 0; i < count_; ++i) {
      auto next = made_.buckets.of(codes_[i]);
      while (bucket < next) starts_[++bucket] = i;
    }
    while (bucket < count) starts_[++bucket] = count_;
    std::uint32_t sizes[kLargest + 1] = {};
    std::uint32_t oversized = 0;
    for (std::uint32_t b = 0; b < count; ++b) {
      auto size = starts_[b + 1] - starts_[b];
      if (size <= kLargest) ++sizes[size];
      oversized += size > kLargest ? size : 0;
    }
    return oversized + keep(sizes);
  }

  std::uint32_t keep(const std::uint32_t* sizes) {
    double placed = 0;
    std::uint32_t redirected = 0;
    kept_[0] = sizes[0];
    kept_[1] = sizes[1];
    for (std::uint32_t size = kLargest; size >= 2; --size) {
      auto collisions = 0.5 * size * size / made_.table;  // among the codes of the bucket
      auto most = made_.table * (1 - std::exp(-std::max(0.0, kLogTrials - collisions) / size));
      auto fit = std::max(0.0, (most - placed) / size);
      kept_[size] = fit < sizes[size] ? static_cast<std::uint32_t>(fit) : sizes[size];
      placed += kept_[size] * size;
      redirected += (sizes[size] - kept_[size]) * size;
    }
    return redirected;
  }

  // Moves the codes of buckets that are not kept to spare buckets, one a code in the mean.
  void redirect(std::uint32_t redirected) {
    made_.spare = redirected;
    if (redirected == 0) return;
    auto count = made_.buckets.count;
    Vector<std::uint64_t> moved(allocator_);
    moved.reserve(redirected);
    std::uint32_t kept = 0;
    for (std::uint32_t b = 0; b < count; ++b) {
      auto first = starts_[b];
      auto size = starts_[b + 1] - first;
      starts_[b] = kept;
      if (size <= kLargest && kept_[size] > 0) {
        --kept_[size];
        std::copy_n(hashes_.begin() + first, size, hashes_.begin() + kept);
        kept += size;
      } else {
        moved.insert(moved.end(), hashes_.begin() + first, hashes_.begin() + first + size);
        redirected_.push_back(b);
      }
    }
    starts_.resize(std::size_t{count} + made_.spare + 1);
    starts_[count] = kept;
    group(moved, count, [this](std::uint64_t hash) { return made_.spare_bucket(hash); });
  }

  // Writes `hashes` by bucket behind starts_[first]; the buckets from `first` on are theirs.
  template <class Bucket>
  void group(const Vector<std::uint64_t>& hashes, std::uint32_t first, Bucket&& bucket_of) {
    Vector<std::uint32_t> ends(starts_.size(), 0, allocator_);
    Vector<std::uint32_t> bucket(hashes.size(), allocator_);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      bucket[i] = bucket_of(hashes[i]);
      ++ends[bucket[i]];
    }
    auto end = starts_[first];
    for (std::size_t b = first; b + 1 < starts_.size(); ++b) {
      starts_[b] = end;
      end += std::exchange(ends[b], end);
    }
    starts_.back() = end;
    Vector<std::uint64_t> grouped(end, allocator_);
    std::copy_n(hashes_.begin(), starts_[first], grouped.begin());
    for (std::size_t i = 0; i < hashes.size(); ++i) grouped[ends[bucket[i]]++] = hashes[i];
    hashes_.swap(grouped);
  }

  void group_by_sorting() {
    Vector<std::pair<std::uint32_t, std::uint64_t>> pairs(count_, allocator_);
    for (std::uint32_t i = 0; i < count_; ++i) {
      pairs[i] = {made_.buckets.of(hashes_[i]), hashes_[i]};
    }
    std::sort(pairs.begin(), pairs.end());
    for (std::uint32_t i = 0; i < count_; ++i) {
      ++starts_[pairs[i].first + 1];
      hashes_[i] = pairs[i].second;
    }
    for (std::size_t b = 1; b < starts_.size(); ++b) starts_[b] += starts_[b - 1];
  }

  // Searches a pilot for every bucket, larger buckets first (by counting).
  void search_all() {
    auto buckets = static_cast<std::uint32_t>(pilots_.size());
    std::uint32_t from[kLargest + 2] = {};  // of buckets of each size in `order`
    auto size_of = [this](std::uint32_t b) { return starts_[b + 1] - starts_[b]; };
    for (std::uint32_t b = 0; b < buckets; ++b) ++from[rank(size_of(b))];
    std::uint32_t total = 0;
    for (auto& entry : from) total += std::exchange(entry, total);
    Vector<std::uint32_t> order(buckets, allocator_);
    for (std::uint32_t b = 0; b < buckets; ++b) order[from[rank(size_of(b))]++] = b;
    for (auto b : order) {
      auto size = size_of(b);
      if (size == 0) break;
      pilots_[b] = search(hashes_.data() + starts_[b], size);
    }
    for (auto b : redirected_) pilots_[b] = kRedirected;
  }
  static std::uint32_t rank(std::uint32_t size) {
    return size > kLargest ? 0 : kLargest + 1 - size;
  }

  std::uint8_t search(const std::uint64_t* hashes, std::uint32_t size) {
    if (size <= kLargest) {
      for (std::uint32_t pilot = 0; pilot < kPilots; ++pilot) {
        if (fits(hashes, size, pilot)) return static_cast<std::uint8_t>(pilot);
      }
    }
    listed_any_ = true;
    return kExplicit;
  }

  // Takes the positions of a bucket's codes if all are free and distinct.
  bool fits(const std::uint64_t* hashes, std::uint32_t size, std::uint32_t pilot) {
    for (std::uint32_t i = 0; i < size; ++i) {
      auto position = table_position(hashes[i], pilot, made_.table);
      auto bit = std::uint64_t{1} << position % 64;
      if ((taken_[position / 64] & bit) != 0) {
        while (i-- > 0) release(table_position(hashes[i], pilot, made_.table));
        return false;
      }
      taken_[position / 64] |= bit;
    }
    return true;
  }
  void release(std::uint32_t position) {
    taken_[position / 64] &= ~(std::uint64_t{1} << position % 64);
  }
  bool taken(std::uint32_t position) const {
    return (taken_[position / 64] >> position % 64 & 1) != 0;
  }

  bool is_listed(std::uint64_t code) const {
    auto hash = mix(code);
    auto pilot = pilots_[made_.buckets.of(made_.by_model != 0 ? code : hash)];
    if (pilot == kRedirected) pilot = pilots_[made_.spare_bucket(hash)];
    return pilot == kExplicit;
  }
  void list_codes() {
    for (std::uint32_t i = 0; listed_any_ && i < count_; ++i) {
      if (is_listed(codes_[i])) list_.push_back(codes_[i]);
    }
    std::sort(list_.begin(), list_.end());
    made_.listed = static_cast<std::uint32_t>(list_.size());
  }

  // Positions below n that are free go to taken ones past it, then to listed codes.
  Vector<std::byte> tables() const {
    Vector<std::byte> made(made_.table_bytes(), allocator_);
    if (!pilots_.empty()) std::memcpy(made.data(), pilots_.data(), pilots_.size());
    std::uint32_t free = 0;
    auto next_free = [&] {
      while (taken(free)) ++free;
      auto found = static_cast<std::uint16_t>(free++);
      return found;
    };
    auto put = [&](std::size_t offset, std::size_t index, auto value) {
      std::memcpy(made.data() + offset + index * sizeof(value), &value, sizeof(value));
    };
    for (std::uint32_t past = 0; past < made_.table - count_; ++past) {
      if (taken(count_ + past)) put(made_.remap_at(), past, next_free());
    }
    for (std::size_t i = 0; i < list_.size(); ++i) {
      put(made_.listed_at(), i, next_free());
      put(made_.list_at(), i, list_[i]);
    }
    return made;
  }

  static constexpr std::uint32_t kLargest = 48;  // codes of a bucket that is searched

  const std::uint64_t* codes_;
  std::uint32_t count_;
  PerfectOptions options_;
  Allocator allocator_;
  PerfectHash made_{};
  Vector<std::uint64_t> hashes_{allocator_};  // by bucket once they are grouped
  Vector<std::uint32_t> starts_{allocator_};  // of buckets in hashes_, one more than buckets
  std::uint32_t kept_[kLargest + 1] = {};
  Vector<std::uint32_t> redirected_{allocator_};  // buckets
  Vector<std::uint8_t> pilots_{allocator_};
  Vector<std::uint64_t> taken_{allocator_};  // bits, by position in the table
  Vector<std::uint64_t> list_{allocator_};
  bool listed_any_ = false;
};

}  // namespace perfect

// Throws std::invalid_argument for no or more than 65,536 codes, std::bad_alloc.
template <class Allocator = std::allocator<std::byte>>
PerfectTables<Allocator> build_perfect_hash(const std::uint64_t* codes, std::size_t count,
                                            const PerfectOptions& options = {},
                                            const Allocator& allocator = {}) {
  return perfect::Build<Allocator>(codes, count, options, allocator).run();
}

}  // namespace headrace::index
