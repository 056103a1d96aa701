#include "transport/shm/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <vector>

#include "process.hpp"
#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// Without these seals, a peer that shrinks the memory kills every process that touches it (SIGBUS).
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Limits of released regions kept for reuse: enough for buffers allocated anew in every step.
constexpr std::size_t kMostKeptBytes = 64 << 20;
constexpr std::size_t kMostKept = 64;

struct Owned {
  std::shared_ptr<Region> region;
  bool used;
  bool inherited = false;  // by a forked child: the parent goes on using the same memory
};

// Released regions in the order of their release.
std::vector<Owned>& owned() {
  static auto& all = *new std::vector<Owned>();  // never destroyed: threads may use it until exit
  return all;
}

// The lock of `owned`. A fork waits for the thread that has it, so that a child's copy is whole and
// free; the child may use and release what it inherits, but has to allocate memory of its own.
class OwnedMutex final : public ForkListener {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void lock_shared() { mutex_.lock_shared(); }
  void unlock_shared() { mutex_.unlock_shared(); }

  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override {
    for (auto& one : owned()) one.inherited = true;
    new (&mutex_) std::shared_mutex;  // the parent's waiting threads are counted in the copy
  }

 private:
  std::shared_mutex mutex_;
};

// Made when the module is loaded (see `process::fork_handlers_installed`), and never destroyed.
OwnedMutex& owned_mutex = *new OwnedMutex();

std::atomic<std::uint64_t> ended{0};

// Removes the oldest released regions beyond the limits; the caller destroys them without the lock.
std::vector<Owned> surplus() {
  std::size_t bytes = 0;
  std::size_t kept = 0;
  auto& all = owned();
  // From the newest on, those within the limits stay.
  auto begin = std::stable_partition(all.rbegin(), all.rend(), [&](const Owned& one) {
    if (one.used) return true;
    auto size = one.region->bytes();
    if (kept == kMostKept || bytes + size > kMostKeptBytes) return false;
    ++kept;
    bytes += size;
    return true;
  });
  std::vector<Owned> more(std::make_move_iterator(begin), std::make_move_iterator(all.rend()));
  all.erase(all.begin(), begin.base());
  return more;
}

}  // namespace

Region::Region(std::size_t bytes)
    : fd_(::memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(bytes) {
  if (fd_ && ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(fd_.get(), F_ADD_SEALS, kSeals) == 0) {
    begin_ = map(PROT_READ | PROT_WRITE);
  }
  if (begin_ == nullptr) {
    throw CommunicationError("cannot allocate " + std::to_string(bytes) +
                             " bytes of shared memory: " + std::strerror(errno));
  }
}

Region::Region(Fd peers) : fd_(std::move(peers)) {
  struct stat found{};
  auto seals = ::fcntl(fd_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd_.get(), &found) != 0) {
    throw ProtocolError("a peer passed a descriptor that is not sealed memory");
  }
  bytes_ = static_cast<std::size_t>(found.st_size);
  begin_ = map(PROT_READ);
  if (begin_ == nullptr) {
    throw ProtocolError("cannot map " + std::to_string(bytes_) +
                        " bytes of a peer's memory: " + std::strerror(errno));
  }
  fd_.reset();  // the mapping is enough
}

std::byte* Region::map(int protection) const {
  auto* mapped = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

Region::~Region() {
  if (begin_ != nullptr) ::munmap(begin_, bytes_);
  if (fd_) ended.fetch_add(1);  // a peer's region has no descriptor
}

std::byte* allocate(std::size_t bytes) {
  auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto wanted = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  std::unique_lock lock(owned_mutex);
  Owned* best = nullptr;
  for (auto& one : owned()) {
    auto size = one.region->bytes();
    // A region that a peer still has to read has a second owner: the connection.
    bool free = !one.used && !one.inherited && one.region.use_count() == 1;
    bool fits = free && size >= wanted && size <= 2 * wanted;
    if (fits && (best == nullptr || size < best->region->bytes())) best = &one;
  }
  if (best == nullptr) {
    owned().push_back({std::make_shared<Region>(wanted), false});
    best = &owned().back();
  }
  best->used = true;
  return best->region->begin();
}

void release(std::byte* begin) {
  std::vector<Owned> more;  // destroyed after the lock is released
  std::unique_lock lock(owned_mutex);
  auto& all = owned();
  auto found =
      std::ranges::find_if(all, [begin](const Owned& one) { return one.region->begin() == begin; });
  if (found == all.end()) return;
  if (found->inherited) {
    more.push_back(std::move(*found));
    all.erase(found);
    return;
  }
  found->used = false;
  std::rotate(found, found + 1, all.end());
  more = surplus();
}

std::uint64_t regions_ended() { return ended.load(); }

std::shared_ptr<const Region> region_of(const std::byte* from, std::size_t bytes) {
  std::shared_lock lock(owned_mutex);
  for (const auto& one : owned()) {
    if (one.used && one.region->holds(from, bytes)) return one.region;
  }
  return nullptr;
}

}  // namespace headrace::shm
