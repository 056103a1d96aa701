#include "transport/shm/shared_buffer.hpp"

#include <algorithm>
#include <cstring>

#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// Whether the pointer is empty or was reset, as opposed to expired.
bool is_none(const std::weak_ptr<const Region>& region) {
  const std::weak_ptr<const Region> none;
  return !region.owner_before(none) && !none.owner_before(region);
}

}  // namespace

bool BufferOwner::post(std::uint64_t position, const std::shared_ptr<const Region>& region,
                       const std::byte* from, std::size_t bytes) {
  auto number = number_of(region);
  if (!number) return false;
  state_.descriptors[posted_ % BufferQueue::kCapacity] = {
      position, *number, static_cast<std::uint64_t>(from - region->begin()), bytes};
  regions_of_posted_[posted_ % BufferQueue::kCapacity] = region;
  state_.posted.store(++posted_);
  return true;
}

std::optional<std::size_t> BufferOwner::number_of(const std::shared_ptr<const Region>& region) {
  std::optional<std::size_t> free;
  for (std::size_t number = 0; number < known_.size(); ++number) {
    // Compares owners, as the address of an ended region may be reused.
    bool same = !known_[number].owner_before(region) && !region.owner_before(known_[number]);
    if (same) return number;
    bool unmapped = !(state_.ended[number / 64].load() >> number % 64 & 1);
    if (!free && is_none(known_[number]) && unmapped) free = number;
  }
  if (!free) {
    if (known_.size() == BufferQueue::kMaxRegions) return std::nullopt;
    free = known_.size();
  }
  if (!doorbell_.pass(connection_, *free, region->fd())) return std::nullopt;
  if (*free == known_.size()) known_.emplace_back();
  known_[*free] = region;
  return free;
}

void BufferOwner::drop_ended() {
  auto ended = regions_ended();
  if (ended == ended_) return;
  ended_ = ended;
  bool any = false;
  for (std::size_t number = 0; number < known_.size(); ++number) {
    if (is_none(known_[number]) || !known_[number].expired()) continue;
    known_[number].reset();
    state_.ended[number / 64].fetch_or(std::uint64_t{1} << number % 64);
    any = true;
  }
  if (any) state_.endings.fetch_add(1);
}

void BufferOwner::revoke() {
  if (!abandoned_) state_.revoked.store(1);
  for (auto& region : regions_of_posted_) region.reset();
}

std::uint32_t BufferOwner::reclaim() {
  auto consumed = state_.consumed.load();
  auto more = consumed - known_consumed_;
  if (more > posted_ - known_consumed_)
    throw ProtocolError("a shared buffer that was never posted was consumed");
  for (; known_consumed_ != consumed; ++known_consumed_)
    regions_of_posted_[known_consumed_ % BufferQueue::kCapacity].reset();
  return more;
}

void BufferReader::add_region(std::size_t number, Fd memory) {
  if (number >= regions_.size()) regions_.resize(number + 1);
  if (regions_[number]) throw ProtocolError("a peer passed a region under a number in use");
  regions_[number] = std::make_unique<const Region>(std::move(memory));
}

void BufferReader::drop_ended() {
  auto endings = state_.endings.load();
  if (endings == endings_) return;
  endings_ = endings;
  for (std::size_t word = 0; word < std::size(state_.ended); ++word) {
    auto ended = state_.ended[word].load();
    for (std::size_t bit = 0; bit < 64; ++bit) {
      auto number = 64 * word + bit;
      if (ended >> bit & 1 && number < regions_.size()) regions_[number].reset();
    }
    state_.ended[word].fetch_and(~ended);  // the owner may reuse these numbers now
  }
}

std::uint64_t BufferReader::bytes_before_next(std::uint64_t head, std::uint64_t tail) {
  if (!has_next() && changed()) next_ = state_.descriptors[seen_ % BufferQueue::kCapacity];
  if (!has_next()) return tail - head;
  if (next_.position < head) throw ProtocolError("a shared buffer came too late");
  return std::min(tail, next_.position) - head;
}

std::span<const std::byte> BufferReader::span() const {
  if (!has_next() || next_.region >= regions_.size() || !regions_[next_.region]) return {};
  const auto& region = *regions_[next_.region];
  if (next_.offset > region.bytes() || next_.bytes > region.bytes() - next_.offset) {
    throw ProtocolError("a shared buffer exceeds its region");
  }
  return {region.begin() + next_.offset, next_.bytes};
}

bool BufferReader::use(std::size_t bytes) {
  // Data read before a revocation may have been overwritten since. A read-modify-write, so that no
  // earlier read is reordered after it.
  if (state_.revoked.fetch_or(0) != 0) return false;
  next_.offset += bytes;
  next_.bytes -= bytes;
  if (!has_next()) state_.consumed.store(++seen_);
  return true;
}

}  // namespace headrace::shm
