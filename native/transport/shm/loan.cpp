#include "transport/shm/loan.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// The number is the byte that the descriptor goes along with.
bool hand_over(int socket, const Fd& memory, std::size_t number) {
  auto note = static_cast<char>(static_cast<unsigned char>(number));
  iovec part{&note, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  auto* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  int fd = memory.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// Whether it was never one's or was reset, other than one whose region ended.
bool is_none(const std::weak_ptr<const Region>& region) {
  const std::weak_ptr<const Region> none;
  return !region.owner_before(none) && !none.owner_before(region);
}

}  // namespace

bool Lender::lend(std::uint64_t position, const std::shared_ptr<const Region>& region,
                  const std::byte* from, std::size_t bytes, int socket) {
  auto number = number_of(region, socket);
  if (!number) return false;
  state_.loans[lent_ % LoanState::kMost] = {
      position, *number, static_cast<std::uint64_t>(from - region->begin()), bytes};
  lent_from_[lent_ % LoanState::kMost] = region;
  state_.lent.store(++lent_);
  return true;
}

std::optional<std::size_t> Lender::number_of(const std::shared_ptr<const Region>& region,
                                             int socket) {
  std::optional<std::size_t> free;
  for (std::size_t number = 0; number < known_.size(); ++number) {
    // owners are compared, as the address of one that ended may be another's now
    bool same = !known_[number].owner_before(region) && !region.owner_before(known_[number]);
    if (same) return number;
    bool unmapped = !(state_.ended[number / 64].load() >> number % 64 & 1);
    if (!free && is_none(known_[number]) && unmapped) free = number;
  }
  if (!free) {
    if (known_.size() == LoanState::kMostRegions) return std::nullopt;
    free = known_.size();
  }
  if (!hand_over(socket, region->fd(), *free)) return std::nullopt;
  if (*free == known_.size()) known_.emplace_back();
  known_[*free] = region;
  return free;
}

void Lender::drop_ended() {
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

void Lender::revoke() {
  state_.revoked.store(1);
  for (auto& region : lent_from_) region.reset();
}

std::uint32_t Lender::take_back() {
  auto taken = state_.taken.load();
  auto more = taken - known_taken_;
  if (more > lent_ - known_taken_) throw ProtocolError("a loan that was never made was taken");
  for (; known_taken_ != taken; ++known_taken_) lent_from_[known_taken_ % LoanState::kMost].reset();
  return more;
}

void Borrower::add_region(std::size_t number, Fd memory) {
  if (number >= regions_.size()) regions_.resize(number + 1);
  if (regions_[number]) throw ProtocolError("a peer handed over a region under a number in use");
  regions_[number] = std::make_unique<const Region>(std::move(memory));
}

void Borrower::drop_ended() {
  auto endings = state_.endings.load();
  if (endings == endings_) return;
  endings_ = endings;
  for (std::size_t word = 0; word < std::size(state_.ended); ++word) {
    auto ended = state_.ended[word].load();
    for (std::size_t bit = 0; bit < 64; ++bit) {
      auto number = 64 * word + bit;
      if (ended >> bit & 1 && number < regions_.size()) regions_[number].reset();
    }
    state_.ended[word].fetch_and(~ended);  // now the writer may use the numbers again
  }
}

std::uint64_t Borrower::until_loan(std::uint64_t head, std::uint64_t tail) {
  if (!has_loan() && news()) loan_ = state_.loans[seen_ % LoanState::kMost];
  if (!has_loan()) return tail - head;
  if (loan_.position < head) throw ProtocolError("a loan came too late");
  return std::min(tail, loan_.position) - head;
}

std::span<const std::byte> Borrower::span() const {
  if (!has_loan() || loan_.region >= regions_.size() || !regions_[loan_.region]) return {};
  const auto& region = *regions_[loan_.region];
  if (loan_.offset > region.bytes() || loan_.bytes > region.bytes() - loan_.offset) {
    throw ProtocolError("a loan reaches beyond its region");
  }
  return {region.begin() + loan_.offset, loan_.bytes};
}

bool Borrower::use(std::size_t bytes) {
  // What was read before it was revoked may have been overwritten since. A read and write in one,
  // as nothing that was read before may be read after it.
  if (state_.revoked.fetch_or(0) != 0) return false;
  loan_.offset += bytes;
  loan_.bytes -= bytes;
  if (!has_loan()) state_.taken.store(++seen_);
  return true;
}

}  // namespace headrace::shm
