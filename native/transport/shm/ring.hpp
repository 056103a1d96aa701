// Two rings of bytes in memory shared by two processes, one writer and one reader each.
//
// A ring is mapped twice in a row, so that whatever lies in it lies in one piece.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/fd.hpp"
#include "transport/shm/loan.hpp"

namespace headrace::shm {

// Nobody sleeps through a change: who publishes a position looks at the sleeper's flag afterwards,
// who sets a flag looks at the position afterwards, and all four are sequentially consistent.
//
// Positions count all bytes ever written (`tail`) and ever read (`head`). Each has a cache line of
// its own, as different processors write them.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> tail{0};
  alignas(64) std::atomic<std::uint64_t> head{0};
  alignas(64) std::atomic<std::uint32_t> reader_sleeps{0};
  alignas(64) std::atomic<std::uint32_t> writer_sleeps{0};  // until there is room
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The mapping of both rings; the two halves of the memory after the page with their states and
// those of loans.
class RingMemory {
 public:
  explicit RingMemory(const Fd& memory);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  RingState& state(int ring) const { return shared_->rings[ring]; }
  LoanState& loans(int ring) const { return shared_->loans[ring]; }
  std::byte* bytes(int ring) const { return rings_[ring]; }
  std::size_t capacity() const { return capacity_; }

 private:
  struct Shared {
    RingState rings[2];
    LoanState loans[2];
  };
  static_assert(sizeof(Shared) <= 4096);

  std::size_t capacity_ = 0;
  Shared* shared_ = nullptr;
  std::byte* rings_[2] = {nullptr, nullptr};
};

class Writer {
 public:
  Writer(const RingMemory& memory, int ring);

  // Room now; looks at the reader's position only if what is known does not suffice.
  std::size_t room(std::size_t wanted);
  // Copies and publishes; there must be room.
  void write(const std::byte* from, std::size_t bytes);

  std::uint64_t tail() const { return tail_; }
  bool held_back() const { return held_back_; }
  void announce_sleep(bool asleep) { state_->writer_sleeps.store(asleep); }
  // Whether room came since the last look.
  bool news() {
    if (!held_back_) return false;
    auto before = known_head_;
    look();
    return known_head_ != before;
  }
  // Whether the reader was asleep and is to be woken.
  bool wakes_reader() {
    state_->tail.store(tail_);
    return state_->reader_sleeps.load() != 0 && state_->reader_sleeps.exchange(0) != 0;
  }

 private:
  void look();

  RingState* state_;
  std::byte* bytes_;
  std::size_t capacity_;
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  bool held_back_ = false;
};

class Reader {
 public:
  Reader(const RingMemory& memory, int ring);

  std::uint64_t head() const { return head_; }
  std::uint64_t tail() const { return known_tail_; }  // as it was at the last look
  std::size_t readable() const { return static_cast<std::size_t>(known_tail_ - head_); }
  // Looks for more; throws ProtocolError if the writer claims what cannot be.
  void look();
  std::span<const std::byte> span() const { return {bytes_ + head_ % capacity_, readable()}; }
  void use(std::size_t bytes) {
    head_ += bytes;
    state_->head.store(head_, std::memory_order_release);
  }

  void announce_sleep(bool asleep) { state_->reader_sleeps.store(asleep); }
  bool news() {
    auto before = known_tail_;
    look();
    return known_tail_ != before;
  }
  // Whether it is time to see if the writer waits for room: not after every few bytes.
  bool freed_enough() {
    if (readable() > 0 && head_ - told_ < capacity_ / 8) return false;
    told_ = head_;
    return true;
  }
  bool wakes_writer() {
    state_->head.store(head_);
    return state_->writer_sleeps.load() != 0 && state_->writer_sleeps.exchange(0) != 0;
  }

 private:
  RingState* state_;
  const std::byte* bytes_;
  std::size_t capacity_;
  std::uint64_t head_ = 0;
  std::uint64_t known_tail_ = 0;
  std::uint64_t told_ = 0;
};

}  // namespace headrace::shm
