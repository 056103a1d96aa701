// Memory of this process that ranks of its host can map: they copy or reduce from it in place,
// without a ring. Process-wide, as buffers outlive groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/fd.hpp"

namespace headrace::shm {

// Anonymous memory behind a descriptor, sealed against shrinking.
class Region {
 public:
  // Allocates `bytes` zeros. Throws CommunicationError if there is no memory.
  explicit Region(std::size_t bytes);
  // Maps a peer's memory read-only. Throws ProtocolError if the descriptor is not sealed memory.
  explicit Region(Fd peers);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const Fd& fd() const { return fd_; }
  std::byte* begin() const { return begin_; }
  std::size_t bytes() const { return bytes_; }
  bool holds(const std::byte* from, std::size_t bytes) const {
    return from >= begin_ && bytes <= bytes_ &&
           static_cast<std::size_t>(from - begin_) <= bytes_ - bytes;
  }

 private:
  std::byte* map(int protection) const;  // nullptr on failure

  Fd fd_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

// Allocates at least `bytes` bytes, page-aligned; reuses a released region of suitable size. Throws
// CommunicationError if there is no memory.
std::byte* allocate(std::size_t bytes);
// `begin` is a result of `allocate`; no call may be under way on it. A few released regions are
// kept for reuse, the oldest are returned to the system: at once, or when no peer has to read them
// any more. Their pages are free when peers have unmapped them, too (see `BufferOwner`).
void release(std::byte* begin);
// Number of regions of this process that have ended: a change makes owners check theirs.
std::uint64_t regions_ended();
// The allocated region that contains the whole range, or nullptr.
std::shared_ptr<const Region> region_of(const std::byte* from, std::size_t bytes);

}  // namespace headrace::shm
