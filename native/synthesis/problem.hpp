// The delivery problem, and the tables that the search derives from it once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "rows.hpp"

namespace headrace::synthesis {

// Ranks, directed links with costs in us and us/MB, and capacities that links share.
struct Network {
  int ranks = 0;
  std::vector<std::int32_t> src, dst;
  std::vector<double> alpha, beta;
  Rows shared;  // links of each shared capacity
  std::vector<double> shared_beta;
  std::vector<std::int32_t> group;  // per rank: links inside a group are not scarce
};

// Messages, in one order.
struct Messages {
  std::vector<std::int32_t> link;
  Rows chunks;  // of each message
};

// Chunk c starts at origin[c] and must reach every rank r with target[c * ranks + r] != 0.
struct Deliveries {
  std::vector<std::int32_t> origin;
  std::vector<std::uint8_t> target;
  double chunk_mb = 0;
  Rows routes;                         // links that each chunk may use; no rows: all
  std::vector<std::int32_t> symmetry;  // elements x ranks; empty: none
  Messages prelude;  // sent before; a chunk waits for what it brings to its origin
};

// The search is impossible: wrong deliveries or symmetry, or no result.
struct SearchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws SearchError for an index or a cost out of range.
void check(const Network& network);

// A network's resources: first every link, then the shared capacities.
class Resources {
 public:
  explicit Resources(const Network& network);

  struct Use {
    std::int32_t resource;
    double beta;
  };

  int count() const { return static_cast<int>(links.size()); }
  std::span<const Use> of(int link) const {
    return {uses_.data() + first_[link], static_cast<std::size_t>(first_[link + 1] - first_[link])};
  }

  Rows links;                        // links of each resource
  std::vector<double> slowest;       // per link: the largest beta of its resources
  std::vector<std::int32_t> narrow;  // per link: the resource with that beta

 private:
  std::vector<std::int64_t> first_;
  std::vector<Use> uses_;
};

// Action of the symmetry group on links and chunks.
struct Symmetry {
  int elements = 1;
  std::vector<std::int32_t> link;        // elements x links
  std::vector<std::int32_t> chunk;       // elements x chunks
  std::vector<std::int32_t> first_link;  // per link: the smallest link of its orbit
  std::vector<std::uint8_t> clash;       // per link: two links of its orbit share a resource

  // Throws SearchError if an element is no permutation or maps a link or chunk to none.
  Symmetry(const Network& network, const Resources& resources, const Deliveries& deliveries);
};

}  // namespace headrace::synthesis
