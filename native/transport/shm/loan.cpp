#include "transport/shm/loan.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// Each takes address space of the reader.
constexpr std::size_t kMostRegions = 1024;

bool hand_over(int socket, const Fd& memory) {
  char note = 0;
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

}  // namespace

bool Lender::lend(std::uint64_t position, const std::shared_ptr<const Region>& region,
                  const std::byte* from, std::size_t bytes, int socket) {
  auto known = std::find(known_.begin(), known_.end(), region);
  auto number = static_cast<std::uint64_t>(known - known_.begin());
  if (known == known_.end()) {
    if (known_.size() == kMostRegions || !hand_over(socket, region->fd())) return false;
    known_.push_back(region);
  }
  state_.loans[lent_ % LoanState::kMost] = {
      position, number, static_cast<std::uint64_t>(from - region->begin()), bytes};
  state_.lent.store(++lent_);
  return true;
}

std::uint32_t Lender::take_back() {
  auto taken = state_.taken.load();
  auto more = taken - known_taken_;
  if (more > lent_ - known_taken_) throw ProtocolError("a loan that was never made was taken");
  known_taken_ = taken;
  return more;
}

void Borrower::add_region(Fd memory) {
  if (regions_.size() == kMostRegions) throw ProtocolError("a peer lends from too many regions");
  regions_.push_back(std::make_unique<const Region>(std::move(memory)));
}

std::uint64_t Borrower::until_loan(std::uint64_t head, std::uint64_t tail) {
  if (!has_loan() && news()) loan_ = state_.loans[seen_ % LoanState::kMost];
  if (!has_loan()) return tail - head;
  if (loan_.position < head) throw ProtocolError("a loan came too late");
  return std::min(tail, loan_.position) - head;
}

std::span<const std::byte> Borrower::span() const {
  if (!has_loan() || loan_.region >= regions_.size()) return {};
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
