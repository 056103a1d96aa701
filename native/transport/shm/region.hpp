// Memory of this process that ranks of its host may read: what lies in it is copied or reduced from
// where it is, once, instead of through a ring. Process-wide, as buffers outlive groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/fd.hpp"

namespace headrace::shm {

// Anonymous memory behind a descriptor that nobody can shrink.
class Region {
 public:
  // Makes `bytes`, zeros. Throws CommunicationError if there is no memory.
  explicit Region(std::size_t bytes);
  // Maps what a peer handed over, to read. Throws ProtocolError if it is no such memory.
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
  std::byte* map(int protection) const;  // nullptr if it cannot be

  Fd fd_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
};

// At least `bytes` bytes, page-aligned. A region that was released is used again where it fits.
// Throws CommunicationError if there is no memory.
std::byte* allocate(std::size_t bytes);
// `begin` is what `allocate` returned; no call may be under way on it. A few released regions are
// kept for `allocate`, the oldest go back to the system: at once, or once no peer has to read them
// any more. The pages are free when peers have unmapped them, too (see `Lender`).
void release(std::byte* begin);
// How many regions of this process have ended: tells when to look for those.
std::uint64_t regions_ended();
// The allocated region that holds all of it, or nullptr.
std::shared_ptr<const Region> region_of(const std::byte* from, std::size_t bytes);

}  // namespace headrace::shm
