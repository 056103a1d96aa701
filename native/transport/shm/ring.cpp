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

void* map(void* at, std::size_t bytes, int fd, std::size_t offset, int more_flags) {
  auto* found = ::mmap(at, bytes, fd < 0 ? PROT_NONE : PROT_READ | PROT_WRITE,
                       (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | more_flags, fd,
                       static_cast<off_t>(offset));
  if (found == MAP_FAILED) fail("cannot map it");
  return found;
}

}  // namespace

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
  auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes < 3 * page || (bytes - page) % (2 * page) != 0 || offset % page != 0) {
    throw CommunicationError("shared memory: " + std::to_string(bytes) +
                             " bytes are not a page and two rings of whole pages");
  }
  capacity_ = (bytes - page) / 2;
  // Not initialised here, as the peer may have begun: new memory is all zeros.
  shared_ = static_cast<Shared*>(map(nullptr, page, memory.get(), offset, 0));
  for (std::size_t ring = 0; ring < 2; ++ring) {
    auto* twice = static_cast<std::byte*>(map(nullptr, 2 * capacity_, -1, 0, 0));
    rings_[ring] = twice;
    for (auto* at : {twice, twice + capacity_}) {
      map(at, capacity_, memory.get(), offset + page + ring * capacity_, MAP_FIXED);
    }
  }
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : capacity_(other.capacity_), shared_(std::exchange(other.shared_, nullptr)) {
  for (std::size_t ring = 0; ring < 2; ++ring) {
    rings_[ring] = std::exchange(other.rings_[ring], nullptr);
  }
}

RingMemory::~RingMemory() {
  for (auto* ring : rings_) {
    if (ring != nullptr) ::munmap(ring, 2 * capacity_);
  }
  if (shared_ != nullptr) ::munmap(shared_, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

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
