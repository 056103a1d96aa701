#include "embedding/cache_design.hpp"

#include <algorithm>
#include <cstdint>

namespace headrace::embedding {

CacheDesign::CacheDesign(Synchronisation synchronisation, std::size_t trainers)
    : synchronisation_(synchronisation),
      trainers_(trainers),
      everyone_(static_cast<Users>((std::uint64_t{1} << trainers) - 1)) {}

void CacheDesign::apply(Decision& decision) {
  switch (synchronisation_) {
    case Synchronisation::kTargeted:
      return;
    case Synchronisation::kLrpp:
      return apply_lrpp(decision);
    case Synchronisation::kReplicated:
      return apply_replicated(decision);
    case Synchronisation::kDistinct:
      return apply_distinct(decision);
  }
}

// Updates of a batch's replicated rows are in equal parts the trainers'.
void CacheDesign::replicate(Decision& decision, std::size_t row) {
  turn_ = turn_ + 1 == trainers_ ? 0 : turn_ + 1;
  decision.users[row] = everyone_;
  decision.owner[row] = static_cast<std::uint8_t>(turn_);
}

void CacheDesign::apply_lrpp(Decision& decision) {
  turn_ = 0;
  for (std::size_t row = 0; row < decision.slots.size(); ++row) {
    const auto slot = decision.slots[row];
    if (slot >= replicated_.size()) replicated_.resize(2 * (slot + std::size_t{1}));
    const bool fetched = decision.fetched[row] != 0;
    const bool resident = replicated_[slot] && !fetched;
    const bool shared = decision.shared[row] != 0 || resident;
    replicated_[slot] = shared;
    // A row that was one trainer's alone so far goes to all of them after this batch.
    if (resident || (shared && fetched)) replicate(decision, row);
    if (shared) decision.next_users[row] = everyone_;
  }
}

void CacheDesign::apply_replicated(Decision& decision) {
  turn_ = 0;
  for (std::size_t row = 0; row < decision.slots.size(); ++row) {
    replicate(decision, row);
    decision.next_users[row] = everyone_;
    decision.critical[row] = 1;
  }
}

void CacheDesign::apply_distinct(Decision& decision) const {
  auto owner = [this](std::uint32_t slot) { return static_cast<std::uint8_t>(slot % trainers_); };
  for (std::size_t row = 0; row < decision.slots.size(); ++row) {
    decision.owner[row] = owner(decision.slots[row]);
    const auto own = Users{1} << decision.owner[row];
    decision.users[row] |= own;
    if (decision.next_users[row] != 0) decision.next_users[row] |= own;
  }
  std::ranges::transform(decision.evicted_slots, decision.evicted_owner.begin(), owner);
  std::ranges::transform(decision.dirty_slots, decision.dirty_owner.begin(), owner);
}

}  // namespace headrace::embedding
