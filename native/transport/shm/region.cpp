#include "transport/shm/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "transport/connection.hpp"

namespace headrace::shm {
namespace {

// Without these, a peer that shrinks the memory kills whoever touches what is gone (SIGBUS).
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Owned {
  std::shared_ptr<Region> region;
  bool used;
};

std::shared_mutex owned_mutex;
std::vector<Owned>& owned() {
  static auto& all = *new std::vector<Owned>();  // threads may use it until the process ends
  return all;
}

}  // namespace

Region::Region(std::size_t bytes)
    : fd_(::memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING)), bytes_(bytes) {
  if (fd_ && ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(fd_.get(), F_ADD_SEALS, kSeals) == 0) {
    begin_ = map(PROT_READ | PROT_WRITE);
  }
  if (begin_ == nullptr) {
    throw CommunicationError("cannot make " + std::to_string(bytes) +
                             " bytes of shared memory: " + std::strerror(errno));
  }
}

Region::Region(Fd peers) : fd_(std::move(peers)) {
  struct stat found{};
  auto seals = ::fcntl(fd_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd_.get(), &found) != 0) {
    throw ProtocolError("a peer offered to lend what is not sealed memory");
  }
  bytes_ = static_cast<std::size_t>(found.st_size);
  begin_ = map(PROT_READ);
  if (begin_ == nullptr) {
    throw ProtocolError("cannot map " + std::to_string(bytes_) +
                        " bytes that a peer lends: " + std::strerror(errno));
  }
  fd_.reset();  // the mapping is enough
}

std::byte* Region::map(int protection) const {
  auto* mapped = ::mmap(nullptr, bytes_, protection, MAP_SHARED, fd_.get(), 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

Region::~Region() {
  if (begin_ != nullptr) ::munmap(begin_, bytes_);
}

std::byte* allocate(std::size_t bytes) {
  auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto wanted = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  std::unique_lock lock(owned_mutex);
  Owned* best = nullptr;
  for (auto& one : owned()) {
    auto size = one.region->bytes();
    bool fits = !one.used && size >= wanted && size <= 2 * wanted;
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
  std::unique_lock lock(owned_mutex);
  for (auto& one : owned()) {
    if (one.region->begin() == begin) one.used = false;
  }
}

std::shared_ptr<const Region> region_of(const std::byte* from, std::size_t bytes) {
  std::shared_lock lock(owned_mutex);
  for (const auto& one : owned()) {
    if (one.used && one.region->holds(from, bytes)) return one.region;
  }
  return nullptr;
}

}  // namespace headrace::shm
