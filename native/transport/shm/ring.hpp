// Two rings of bytes in memory shared by two processes, one writer and one reader each.
//
// Each ring is mapped twice in a row, so that its contents are always contiguous.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/fd.hpp"
#include "transport/shm/shared_buffer.hpp"

namespace headrace::shm {

// No lost wake-ups: after publishing a position a side checks the other's sleep flag, after setting
// its flag it checks the position, and all four operations are sequentially consistent.
//
// Positions count all bytes ever written (`tail`) and read (`head`). Each has its own cache line,
// as different processors write them.
struct RingState {
  alignas(64) std::atomic<std::uint64_t> tail{0};
  alignas(64) std::atomic<std::uint64_t> head{0};
  alignas(64) std::atomic<std::uint32_t> reader_sleeps{0};
  alignas(64) std::atomic<std::uint32_t> writer_sleeps{0};  // until there is room
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The mapping of both rings: one page of states (rings and buffer queues), then one half of the
// rest for each ring.
class RingMemory {
 public:
  // In all of `memory`, or in its `bytes` from `offset` on.
  explicit RingMemory(const Fd& memory) : RingMemory(memory, 0, size_of(memory)) {}
  RingMemory(const Fd& memory, std::size_t offset, std::size_t bytes);
  ~RingMemory();
  RingMemory(RingMemory&& other) noexcept;
  RingMemory& operator=(RingMemory&&) = delete;

  RingState& state(int ring) const { return shared_->rings[ring]; }
  BufferQueue& buffer_queue(int ring) const { return shared_->buffer_queue[ring]; }
  std::byte* bytes(int ring) const { return rings_[ring]; }
  std::size_t capacity() const { return capacity_; }
  static std::size_t size_of(const Fd& memory);
  // Bytes of a page of this system: 4 KiB, or up to 64 KiB on some.
  static std::size_t page_bytes();

 private:
  struct Shared {
    RingState rings[2];
    BufferQueue buffer_queue[2];
  };
  static_assert(sizeof(Shared) <= 4096);

  std::size_t mapped_bytes() const;

  std::size_t capacity_ = 0;
  std::byte* begin_ = nullptr;  // of the mapping
  Shared* shared_ = nullptr;
  std::byte* rings_[2] = {nullptr, nullptr};
};

class Writer {
 public:
  Writer(const RingMemory& memory, int ring);

  // Free bytes; reads the reader's position only if the cached one does not suffice.
  std::size_t room(std::size_t wanted);
  // Copies and publishes; requires enough room.
  void write(const std::byte* from, std::size_t bytes);

  std::uint64_t tail() const { return tail_; }
  bool held_back() const { return held_back_; }
  void announce_sleep(bool asleep) { state_->writer_sleeps.store(asleep); }
  // Whether room was freed since the last check.
  bool changed() {
    if (!held_back_) return false;
    auto before = known_head_;
    refresh();
    return known_head_ != before;
  }
  // Whether the reader was asleep and must be woken.
  bool wakes_reader() {
    state_->tail.store(tail_);
    return state_->reader_sleeps.load() != 0 && state_->reader_sleeps.exchange(0) != 0;
  }

 private:
  void refresh();

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
  std::uint64_t tail() const { return known_tail_; }  // as of the last `refresh`
  std::size_t readable() const { return static_cast<std::size_t>(known_tail_ - head_); }
  // Whether bytes are left, those published since the last `refresh` included.
  bool has_unread() const { return state_->tail.load() != head_; }
  // Reads the writer's position; throws ProtocolError if it is impossible.
  void refresh();
  std::span<const std::byte> span() const { return {bytes_ + head_ % capacity_, readable()}; }
  void use(std::size_t bytes) {
    head_ += bytes;
    state_->head.store(head_, std::memory_order_release);
  }

  void announce_sleep(bool asleep) { state_->reader_sleeps.store(asleep); }
  bool changed() {
    auto before = known_tail_;
    refresh();
    return known_tail_ != before;
  }
  // Whether enough was freed to check if the writer sleeps: not after every few bytes.
  bool freed_enough() {
    if (readable() > 0 && head_ - last_check_ < capacity_ / 8) return false;
    last_check_ = head_;
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
  std::uint64_t last_check_ = 0;
};

}  // namespace headrace::shm
