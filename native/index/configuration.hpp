// What a map is built of, and what it reports about itself.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace headrace::index {

// Data structure of a leaf; leaves of several types may stand in one tree.
enum class Leaf : std::uint8_t {
  gapped,   // sorted, with gaps, searched from a model's prediction
  log,      // unsorted, appended, searched linearly
  hashed,   // buckets of one cache line each, placed by a hash
  perfect,  // placed by a minimal perfect hash, with a write buffer
};
constexpr std::size_t kLeafTypes = 4;
constexpr const char* kLeafNames[kLeafTypes] = {"gapped", "log", "hashed", "perfect"};

// Most keys that one change of structure may move; of gapped and perfect leaves with this many
// `leaf_keys`, those that came beyond it, too.
constexpr std::uint32_t kMostMovedKeys = 65'536;
constexpr std::uint32_t kMostSlots = 1U << 20;
constexpr std::uint32_t kMostFragmentKeys = 32'768;
constexpr double kLeastFill = 0.3;

struct Configuration {
  Leaf leaf = Leaf::hashed;
  std::uint32_t fragment_keys = 512;    // log, hashed: most keys of a fragment (mf-size)
  std::uint32_t fragments = 1U << 18;   // most slots of a model node (Mnf)
  std::uint32_t initial_fragments = 8;  // slots of a node that replaces a full leaf (nf)
  bool fingerprints = true;             // log: search by one-byte fingerprints
  std::uint32_t leaf_keys = 4096;       // gapped, perfect: most keys of a leaf, a power of two
  double fill = 0.7;                    // share of a bulk-loaded leaf that is filled
  double max_search = 4.0;              // gapped: mean search iterations (Msi)
  double max_shifts = 32.0;             // gapped: mean shifts of an insert (Msh)
  double insert_fraction = 0.5;         // gapped: expected share of inserts
  bool operator==(const Configuration&) const = default;

  // Throws std::invalid_argument naming the field, what was found and what is accepted.
  void validate() const;
};

// Both bounds are accepted. Besides, `initial_fragments` is at most `fragments`, and `leaf_keys` a
// power of two.
template <class Number>
struct FieldLimits {
  const char* field;
  Number Configuration::* member;
  Number least;
  Number most;
};
constexpr std::array kIntegerLimits{
    FieldLimits<std::uint32_t>{"fragment_keys", &Configuration::fragment_keys, 8,
                               kMostFragmentKeys},
    FieldLimits<std::uint32_t>{"fragments", &Configuration::fragments, 2, kMostSlots},
    FieldLimits<std::uint32_t>{"initial_fragments", &Configuration::initial_fragments, 2,
                               kMostSlots},
    FieldLimits<std::uint32_t>{"leaf_keys", &Configuration::leaf_keys, 16, kMostMovedKeys},
};
constexpr std::array kNumberLimits{
    FieldLimits<double>{"fill", &Configuration::fill, kLeastFill, 0.98},
    FieldLimits<double>{"max_search", &Configuration::max_search, 0.0, 1e9},
    FieldLimits<double>{"max_shifts", &Configuration::max_shifts, 0.0, 1e9},
    FieldLimits<double>{"insert_fraction", &Configuration::insert_fraction, 0.0, 1.0},
};

struct Statistics {
  std::size_t size = 0;         // keys
  std::size_t bytes = 0;        // memory of nodes, leaves and free blocks between them
  std::size_t leaf_bytes = 0;   // of them: leaves
  std::size_t inner_nodes = 0;  // linear and comparison nodes
  std::size_t comparison_nodes = 0;
  std::size_t slots = 0;                         // of all inner nodes
  std::array<std::size_t, kLeafTypes> leaves{};  // by type
  std::array<std::size_t, kLeafTypes> keys{};    // by type of their leaf
  std::size_t depth = 0;                         // most inner nodes above a leaf
  double mean_depth = 0;                         // inner nodes above a key, on average
  std::uint64_t changes = 0;                     // of structure, since the map was made
  std::uint64_t moved_keys = 0;                  // by all of these changes
  std::uint64_t largest_change_keys = 0;         // by one of them
};

namespace detail {

template <class Found>
[[noreturn]] void refuse(const char* field, const Found& found, const std::string& needed) {
  std::ostringstream text;
  text << "index configuration: " << field << " is " << found << ", needs " << needed;
  throw std::invalid_argument(text.str());
}

template <class Number>
void check_between(const char* field, Number found, Number least, Number most) {
  if (found >= least && found <= most) return;  // false for NaN
  std::ostringstream needed;
  needed << least << " to " << most;
  refuse(field, found, needed.str());
}

}  // namespace detail

inline void Configuration::validate() const {
  if (static_cast<std::size_t>(leaf) >= kLeafTypes) {
    detail::refuse("leaf", static_cast<int>(leaf), "0 (gapped) to 3 (perfect)");
  }
  for (const auto& row : kIntegerLimits) {
    detail::check_between(row.field, this->*row.member, row.least, row.most);
  }
  for (const auto& row : kNumberLimits) {
    detail::check_between(row.field, this->*row.member, row.least, row.most);
  }
  detail::check_between("initial_fragments", initial_fragments, 2U, fragments);
  if (!std::has_single_bit(leaf_keys)) detail::refuse("leaf_keys", leaf_keys, "a power of two");
}

}  // namespace headrace::index
