// Zero-copy transfers: the reader takes bytes from a region of the owner's memory instead of a
// ring. The owner may overwrite them once they are consumed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/shm/doorbell.hpp"
#include "transport/shm/region.hpp"

namespace headrace::shm {

// Shared state of one direction: a queue of buffer descriptors, all zeros at first. As with rings,
// a side that publishes a change checks the other's sleep flag afterwards.
struct BufferQueue {
  static constexpr std::uint32_t kCapacity = 8;
  static constexpr std::size_t kMaxRegions = 256;  // mapped by a reader; a number fits in one byte

  struct Descriptor {
    std::uint64_t position;  // in the stream: bytes of the ring before it
    std::uint64_t region;    // number under which it was passed on this connection
    std::uint64_t offset;    // in the region
    std::uint64_t bytes;
  };

  alignas(64) std::atomic<std::uint32_t> posted{0};  // count, by the owner
  std::atomic<std::uint32_t> revoked{0};
  Descriptor descriptors[kCapacity];
  std::atomic<std::uint32_t> endings{0};               // count of ended regions, by the owner
  alignas(64) std::atomic<std::uint32_t> consumed{0};  // count, by the reader
  // Bit per region number: ended at the owner, not yet unmapped by the reader.
  std::atomic<std::uint64_t> ended[kMaxRegions / 64]{};
};

class BufferOwner {
 public:
  // Passes regions to connection `connection` of the peer.
  BufferOwner(BufferQueue& state, const Doorbell& doorbell, std::size_t connection)
      : state_(state), doorbell_(doorbell), connection_(connection) {}

  bool full() const { return posted_ - known_consumed_ == BufferQueue::kCapacity; }
  bool pending() const { return posted_ != known_consumed_; }
  // Posts `bytes` at `from`, in `region`, whose descriptor is passed the first time.
  // Returns false if it cannot be passed. The queue must not be full.
  bool post(std::uint64_t position, const std::shared_ptr<const Region>& region,
            const std::byte* from, std::size_t bytes);
  // Number of descriptors consumed since the last call. Throws ProtocolError if it is impossible.
  std::uint32_t reclaim();
  // Whether `reclaim` would return more than 0.
  bool changed() const { return pending() && state_.consumed.load() != known_consumed_; }
  // Revokes all descriptors not consumed yet: the reader must not use their bytes any more.
  void revoke();
  // For a forked child: the state is the parent's, and is not written any more.
  void abandon() { abandoned_ = true; }
  // Makes the reader unmap the regions that have ended, if any.
  void drop_ended();

 private:
  // The number of `region` at the reader; passes its descriptor if it has none.
  std::optional<std::size_t> number_of(const std::shared_ptr<const Region>& region);

  BufferQueue& state_;
  const Doorbell& doorbell_;
  std::size_t connection_;
  std::vector<std::weak_ptr<const Region>> known_;  // regions passed to the reader, by number
  std::uint64_t ended_ = regions_ended();           // value at the last check of `known_`
  // Keeps regions with unconsumed descriptors from being reused.
  std::shared_ptr<const Region> regions_of_posted_[BufferQueue::kCapacity];
  bool abandoned_ = false;
  std::uint32_t posted_ = 0;
  std::uint32_t known_consumed_ = 0;
};

class BufferReader {
 public:
  explicit BufferReader(BufferQueue& state) : state_(state) {}

  // Maps a region passed on the socket under `number`. Throws ProtocolError if it is not sealed
  // memory or the number is in use.
  void add_region(std::size_t number, Fd memory);
  // Unmaps the regions that the owner has ended.
  void drop_ended();
  // Bytes of the stream before the next buffer, at most up to `tail`. Throws ProtocolError if its
  // position is in the past.
  std::uint64_t bytes_before_next(std::uint64_t head, std::uint64_t tail);
  // Whether the stream continues at `head` with a buffer.
  bool is_next(std::uint64_t head) const { return has_next() && next_.position == head; }
  // Remainder of the next buffer; empty before its region has come. Throws ProtocolError if it
  // exceeds its region.
  std::span<const std::byte> span() const;
  // Consumes the first bytes; returns false if they were revoked and must not be used.
  bool use(std::size_t bytes);
  bool changed() const { return state_.posted.load() != seen_; }

 private:
  bool has_next() const { return next_.bytes > 0; }

  BufferQueue& state_;
  std::vector<std::unique_ptr<const Region>> regions_;  // by number
  std::uint32_t endings_ = 0;                           // count of ended regions seen
  std::uint32_t seen_ = 0;
  BufferQueue::Descriptor next_{};  // remainder of the next one
};

}  // namespace headrace::shm
