#include "transport/shm/ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// A large piece is published part by part, so that the reader can begin before the writer is done.
constexpr std::size_t kPublishBytes = 32 << 10;

[[noreturn]] void fail(const std::string& what) {
  throw CommunicationError("shared memory: " + what + ": " + std::strerror(errno));
}

std::byte* map(std::byte* at, std::size_t bytes, const Fd& memory, std::size_t offset) {
  auto* begin =
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, at == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED,
             memory.get(), static_cast<off_t>(offset));
  if (begin == MAP_FAILED) fail("cannot map it");
  return static_cast<std::byte*>(begin);
}

}  // namespace

std::size_t RingMemory::page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::size_t RingMemory::size_of(const Fd& memory) {
  struct stat found{};
  if (::fstat(memory.get(), &found) != 0) fail("cannot read its size");
  return static_cast<std::size_t>(found.st_size);
}

RingMemory::RingMemory(const Fd& memory, std::size_t offset, std::size_t bytes) {
  // Without the seal, a peer that shrinks it kills every process that touches it (SIGBUS).
  auto seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw CommunicationError("shared memory: it is not sealed against shrinking");
  }
  auto page = page_bytes();
  if (bytes < 3 * page || (bytes - page) % (2 * page) != 0 || offset % page != 0) {
    throw CommunicationError("shared memory: " + std::to_string(bytes) +
                             " bytes are not a page and two rings of whole pages");
  }
  capacity_ = (bytes - page) / 2;
  // The memory is the page and the rings a and b, the mapping the page, a, a, b, b: from the page
  // on, over that from a on, and over that from b on. Three calls, as a group has many rings.
  begin_ = map(nullptr, mapped_bytes(), memory, offset);
  try {
    map(begin_ + page + capacity_, 2 * capacity_, memory, offset + page);
    map(begin_ + page + 3 * capacity_, capacity_, memory, offset + page + capacity_);
  } catch (...) {
    ::munmap(begin_, mapped_bytes());
    throw;
  }
  // Not initialised here, as the peer may have begun: new memory is all zeros.
  shared_ = reinterpret_cast<Shared*>(begin_);
  rings_[0] = begin_ + page;
  rings_[1] = begin_ + page + 2 * capacity_;
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : capacity_(other.capacity_),
      begin_(std::exchange(other.begin_, nullptr)),
      shared_(other.shared_),
      rings_{other.rings_[0], other.rings_[1]} {}

RingMemory::~RingMemory() {
  if (begin_ != nullptr) ::munmap(begin_, mapped_bytes());
}

std::size_t RingMemory::mapped_bytes() const { return page_bytes() + 4 * capacity_; }

Writer::Writer(const RingMemory& memory, int ring)
    : state_(&memory.state(ring)), bytes_(memory.bytes(ring)), capacity_(memory.capacity()) {}

std::size_t Writer::room(std::size_t wanted) {
  auto room = capacity_ - static_cast<std::size_t>(tail_ - known_head_);
  if (room < wanted) {
    refresh();
    room = capacity_ - static_cast<std::size_t>(tail_ - known_head_);
  }
  held_back_ = room < wanted;
  return room;
}

void Writer::refresh() {
  known_head_ = state_->head.load();
  // Detects a reader that is ahead of us or moved backwards.
  if (tail_ - known_head_ > capacity_) throw ProtocolError("a shared ring was overwritten");
}

void Writer::write(const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    auto piece = std::min(bytes, kPublishBytes);
    std::memcpy(bytes_ + tail_ % capacity_, from, piece);
    tail_ += piece;
    state_->tail.store(tail_, std::memory_order_release);
    from += piece;
    bytes -= piece;
  }
}

Reader::Reader(const RingMemory& memory, int ring)
    : state_(&memory.state(ring)), bytes_(memory.bytes(ring)), capacity_(memory.capacity()) {}

void Reader::refresh() {
  known_tail_ = state_->tail.load();
  if (readable() > capacity_) throw ProtocolError("a shared ring was overwritten");
}

}  // namespace headrace::shm
