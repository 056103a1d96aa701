// Designs of caches as columns of a decision: trainers that use, update and receive each row.
//
// All designs exchange alike, by these columns. In a replicated cache every trainer uses every row,
// so that gradients are reduced to one trainer and rows go to all: the bytes of a ring, as long as
// the optimizer has no state, which travels with the row.
#pragma once

#include <cstddef>
#include <vector>

#include "embedding/decision.hpp"

namespace headrace::embedding {

enum class Synchronisation {
  // Rows go from the trainers that used them to the one that updates them, and on to those that use
  // them next.
  kTargeted,
  // Rows that several trainers use are at all of them: from the batch on in whose window they do,
  // until they are evicted (BagPipe, 5.2.3).
  kLrpp,
  // All rows are at all trainers, and no exchange is delayed.
  kReplicated,
  // A partitioned cache: a row's slot determines its owner, which has the row as long as it stays.
  kDistinct,
};

class CacheDesign {
 public:
  CacheDesign(Synchronisation synchronisation, std::size_t trainers);
  // Rewrites the columns of the next decision, which are those of targeted exchanges: `users`,
  // `next_users`, `owner`, `critical` and `evicted_owner`.
  void apply(Decision& decision);

 private:
  void replicate(Decision& decision, std::size_t row);
  void apply_lrpp(Decision& decision);
  void apply_replicated(Decision& decision);
  void apply_distinct(Decision& decision) const;

  Synchronisation synchronisation_;
  std::size_t trainers_;
  Users everyone_;
  std::size_t turn_ = 0;          // of the trainer that updates a replicated row
  std::vector<bool> replicated_;  // by slot, of LRPP
};

}  // namespace headrace::embedding
