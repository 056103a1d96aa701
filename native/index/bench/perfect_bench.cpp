// Minimal perfect hash functions of leaves: time of construction by the choice of buckets, time of
// a lookup, and memory. Every position and every value that is read is checked.
//
//   perfect_bench [CODES]   about so many codes in all for each row (default 1,000,000)
//
// Times are processor time. Construction, ns a code: `sorted` groups codes by their hash by sorting
// pairs of bucket and hash, as the paper of PTHash does; `counted` by counting; `model` chooses
// buckets by a linear model of the sorted codes (MAPLE, section 6.2.3), and needs no grouping.
// Lookups, ns, of random codes of all leaves: of the position, and of the value in a leaf of the
// index (none, and a tenth of the codes but at most 896, in its write buffer).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "index/bench/meter.hpp"
#include "index/leaves/perfect_build.hpp"
#include "index/leaves/perfect_leaf.hpp"
#include "index/memory/memory.hpp"
#include "index/memory/word.hpp"

using namespace headrace::index;

namespace {

using Codes = std::vector<std::uint64_t>;
constexpr int kRounds = 5;

// Median over rounds of the time of `action`, for each of `items`.
double timed(std::size_t items, const std::function<void()>& action) {
  std::vector<double> spent;
  for (int round = 0; round < kRounds; ++round) {
    bench::Stopwatch watch;
    action();
    spent.push_back(static_cast<double>(watch.processor()) / static_cast<double>(items));
  }
  std::sort(spent.begin(), spent.end());
  return spent[kRounds / 2];
}

struct Distribution {
  const char* name;
  std::uint64_t (*draw)(std::mt19937_64& random);
};

std::uint64_t log_normal(std::mt19937_64& random) {
  std::lognormal_distribution<double> distribution(0, 2);
  return static_cast<std::uint64_t>(std::ldexp(distribution(random), 40));
}
std::uint64_t outliers(std::mt19937_64& random) {
  return random() % 50'000 == 0 ? random() : random() >> 24;
}
// Bits of two clustered coordinates in turn (Morton order).
std::uint64_t morton(std::mt19937_64& random) {
  static const Codes centres = [] {
    std::mt19937_64 fixed(3);
    Codes made(64);
    for (auto& centre : made) centre = fixed() >> 8;
    return made;
  }();
  auto centre = centres[random() % centres.size()];
  std::normal_distribution<double> distance(0, 2e5);
  std::uint64_t code = 0;
  auto x = (centre >> 28) + static_cast<std::uint64_t>(std::abs(distance(random)));
  auto y = (centre & 0xfffffff) + static_cast<std::uint64_t>(std::abs(distance(random)));
  for (int bit = 0; bit < 30; ++bit) code |= ((x >> bit & 1) << 1 | (y >> bit & 1)) << 2 * bit;
  return code;
}

constexpr Distribution kDistributions[] = {
    {"uniform", [](std::mt19937_64& random) -> std::uint64_t { return random(); }},
    {"sequential", nullptr},
    {"books", log_normal},
    {"fb", outliers},
    {"osm", morton},
};

// Distinct codes of the whole, ascending, which leaves divide.
Codes generate(const Distribution& distribution, std::size_t count) {
  std::mt19937_64 random(1);
  Codes codes;
  if (distribution.draw == nullptr) {  // with gaps
    for (std::uint64_t code = 0; codes.size() < count; code += 1 + random() % 16) {
      codes.push_back(code);
    }
    return codes;
  }
  while (codes.size() < count) {
    auto missing = count - codes.size();
    std::generate_n(std::back_inserter(codes), missing + missing / 8,
                    [&] { return distribution.draw(random); });
    std::sort(codes.begin(), codes.end());
    codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  }
  codes.resize(count);
  return codes;
}

struct Row {
  double sorted, counted, model, position, leaf, buffered, bits, leaf_bytes;
  std::size_t by_model;
};

class Bench {
 public:
  Bench(const Codes& codes, std::size_t leaf_codes) : codes_(codes), leaf_codes_(leaf_codes) {
    std::mt19937_64 random(2);
    for (std::size_t i = 0; i < codes.size(); ++i) queries_.push_back(random() % codes.size());
  }

  Row run() {
    Row row{};
    row.sorted = construct({.choice = BucketChoice::kHash, .grouping = Grouping::kSorting});
    row.counted = construct({.choice = BucketChoice::kHash});
    row.model = construct({.choice = BucketChoice::kModel});
    for (const auto& function : functions_) {
      row.bits += function.bits_per_code() / static_cast<double>(functions_.size());
      row.by_model += function.function.by_model;
    }
    row.position = look_up_positions();
    row.leaf = look_up_values(0, row.leaf_bytes);
    double unused = 0;
    row.buffered = look_up_values(10, unused);
    return row;
  }

 private:
  using Leaf = PerfectLeaf<std::uint64_t>;

  double construct(const PerfectOptions& options) {
    return timed(codes_.size(), [&] {
      functions_.clear();
      for (std::size_t first = 0; first < codes_.size(); first += leaf_codes_) {
        functions_.push_back(build_perfect_hash(codes_.data() + first, leaf_codes_, options));
      }
    });
  }

  double look_up_positions() {
    std::vector<std::uint32_t> expected(codes_.size());
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      expected[i] = functions_[i / leaf_codes_].position(codes_[i]);
    }
    std::size_t wrong = 0;
    auto time = timed(queries_.size(), [&] {
      for (auto query : queries_) {
        wrong += functions_[query / leaf_codes_].position(codes_[query]) != expected[query];
      }
    });
    for (std::size_t first = 0; first < codes_.size(); first += leaf_codes_) {
      std::sort(expected.begin() + static_cast<std::ptrdiff_t>(first),
                expected.begin() + static_cast<std::ptrdiff_t>(first + leaf_codes_));
      for (std::size_t i = 0; i < leaf_codes_; ++i) CHECK(expected[first + i] == i);
    }
    CHECK(wrong == 0);
    return time;
  }

  // Every `late`-th code is inserted after the leaf was built (0: none is).
  double look_up_values(std::size_t late, double& bytes) {
    Arena<std::allocator<std::byte>> arena{std::allocator<std::byte>()};
    std::vector<Word> leaves;
    std::size_t lines = 0;
    for (std::size_t first = 0; first < codes_.size(); first += leaf_codes_) {
      leaves.push_back(build_leaf(arena, first, late));
      lines += Leaf::lines(leaves.back());
    }
    bytes = static_cast<double>(lines * kLineBytes) / static_cast<double>(codes_.size());
    std::size_t wrong = 0;
    auto time = timed(queries_.size(), [&] {
      for (auto query : queries_) {
        std::uint64_t value = 0;
        Leaf(leaves[query / leaf_codes_]).get(codes_[query], value);
        wrong += value != ~codes_[query];
      }
    });
    CHECK(wrong == 0);
    for (auto word : leaves) arena.release(word.to(), Leaf::lines(word));
    return time;
  }

  Word build_leaf(Arena<std::allocator<std::byte>>& arena, std::size_t first, std::size_t late) {
    Codes built, inserted;
    for (std::size_t i = first; i < first + leaf_codes_; ++i) {
      bool now = late == 0 || i % late != 0 || inserted.size() == perfect::kMostBuffered;
      (now ? built : inserted).push_back(codes_[i]);
    }
    Codes values;
    for (auto code : built) values.push_back(~code);
    PerfectDraft<std::uint64_t> draft({built.data(), values.data(), built.size()});
    Word word(arena.allocate(draft.lines()), Kind::perfect, draft.units(), built.front() == 0);
    draft.write(word);
    for (auto code : inserted) {
      if (Leaf(word).insert(code, ~code, true) == Outcome::done) continue;
      std::fprintf(stderr, "a write buffer was full early\n");
      std::abort();
    }
    return word;
  }

  const Codes& codes_;
  std::size_t leaf_codes_;
  std::vector<std::size_t> queries_;
  std::vector<PerfectTables<>> functions_;
};

}  // namespace

int main(int count, char** arguments) {
  auto codes = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1'000'000;
  std::printf("%10s %6s | %6s %7s %6s %8s | %8s %6s %8s | %9s %10s\n", "", "", "sorted", "counted",
              "model", "speed-up", "position", "leaf", "buffered", "bits/code", "bytes/code");
  for (std::size_t leaf_codes : {1'024, 4'096, 65'536}) {
    for (const auto& distribution : kDistributions) {
      auto all = generate(distribution, (codes + leaf_codes - 1) / leaf_codes * leaf_codes);
      auto row = Bench(all, leaf_codes).run();
      std::printf("%10s %6zu | %6.1f %7.1f %6.1f %7.2fx | %8.1f %6.1f %8.1f | %9.2f %10.2f%s\n",
                  distribution.name, leaf_codes, row.sorted, row.counted, row.model,
                  row.sorted / row.model, row.position, row.leaf, row.buffered, row.bits,
                  row.leaf_bytes,
                  row.by_model * leaf_codes < all.size() ? "  (some leaves by hash)" : "");
    }
  }
}
