// Bytes that are not copied into a ring: the reader takes them from a region of the writer's
// memory. The writer may overwrite them once they were taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/shm/region.hpp"

namespace headrace::shm {

// What both sides share of one direction, all zeros at first. As with rings, who changes something
// that the other may sleep on looks at the sleeper's flag afterwards.
struct LoanState {
  static constexpr std::uint32_t kMost = 8;
  static constexpr std::size_t kMostRegions = 256;  // that a reader maps; their numbers are bytes

  struct Loan {
    std::uint64_t position;  // in the stream: how many bytes of the ring come before it
    std::uint64_t region;    // the number that it was handed over with on this connection
    std::uint64_t offset;    // in the region
    std::uint64_t bytes;
  };

  alignas(64) std::atomic<std::uint32_t> lent{0};  // by the writer, in all
  std::atomic<std::uint32_t> revoked{0};
  Loan loans[kMost];
  std::atomic<std::uint32_t> endings{0};            // of regions, in all, by the writer
  alignas(64) std::atomic<std::uint32_t> taken{0};  // by the reader, in all
  // By number: the writer's region ended, and the reader has not unmapped it yet.
  std::atomic<std::uint64_t> ended[kMostRegions / 64]{};
};

class Lender {
 public:
  explicit Lender(LoanState& state) : state_(state) {}

  bool full() const { return lent_ - known_taken_ == LoanState::kMost; }
  bool waits() const { return lent_ != known_taken_; }
  // Lends `bytes` at `from`, in `region`, which is handed over on `socket` if it never was before.
  // Returns whether it could; there must be room.
  bool lend(std::uint64_t position, const std::shared_ptr<const Region>& region,
            const std::byte* from, std::size_t bytes, int socket);
  // How many loans were taken since the last call. Throws ProtocolError if that cannot be.
  std::uint32_t take_back();
  // Whether there is something to take back.
  bool news() const { return waits() && state_.taken.load() != known_taken_; }
  // What the reader has not taken by now is not to be used any more.
  void revoke();
  // Tells the reader to unmap the regions that have ended, if there are any.
  void drop_ended();

 private:
  // A number under which `region` is known to the reader, handed over on `socket` if need be.
  std::optional<std::size_t> number_of(const std::shared_ptr<const Region>& region, int socket);

  LoanState& state_;
  std::vector<std::weak_ptr<const Region>> known_;  // to the reader, by number
  std::uint64_t ended_ = regions_ended();           // when `known_` was looked through
  // Of the loans that were not taken: their memory is not given to others meanwhile.
  std::shared_ptr<const Region> lent_from_[LoanState::kMost];
  std::uint32_t lent_ = 0;
  std::uint32_t known_taken_ = 0;
};

class Borrower {
 public:
  explicit Borrower(LoanState& state) : state_(state) {}

  // Takes over what came with a message on the socket, and its number. Throws ProtocolError if it
  // is no memory, or the number is taken.
  void add_region(std::size_t number, Fd memory);
  // Unmaps the regions that the writer has ended.
  void drop_ended();
  // Bytes of the stream that have come before the next loan, of those up to `tail`. Throws
  // ProtocolError if the loan is in the past.
  std::uint64_t until_loan(std::uint64_t head, std::uint64_t tail);
  // Whether what comes at `head` is lent.
  bool is_next(std::uint64_t head) const { return has_loan() && loan_.position == head; }
  // What is left of the next loan, once its region has come; else empty. Throws ProtocolError if it
  // is not in its region.
  std::span<const std::byte> span() const;
  // Leaves the first bytes behind; returns false if what was read of them is not to be used.
  bool use(std::size_t bytes);
  bool news() const { return state_.lent.load() != seen_; }

 private:
  bool has_loan() const { return loan_.bytes > 0; }

  LoanState& state_;
  std::vector<std::unique_ptr<const Region>> regions_;  // by number
  std::uint32_t endings_ = 0;                           // that were seen
  std::uint32_t seen_ = 0;
  LoanState::Loan loan_{};  // what is left of the next one
};

}  // namespace headrace::shm
