// A workload of the benchmark: sorted codes to load, then operations in order, mapped from a file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace headrace::index::bench {

// Numbers of operations in the file. A find of `kMiss` is of a code that is not in the map.
enum Kind : std::uint8_t { kFind = 0, kInsert = 1, kErase = 2, kScan = 3, kMiss = 4 };

constexpr std::size_t kScanLength = 100;

// The value that belongs to a code, so that every lookup can be checked. It is never 0: JudyL says
// by 0 that a place is new.
template <class Value>
Value value_of(std::uint64_t code) {
  return static_cast<Value>((code ^ (code >> 32)) * 0x9E3779B97F4A7C15 | 1);
}

template <class Value>
std::vector<Value> values_of(std::span<const std::uint64_t> codes) {
  std::vector<Value> values(codes.size());
  std::transform(codes.begin(), codes.end(), values.begin(), value_of<Value>);
  return values;
}

// The file: 3 words of 8 bytes (kMagic, count of loaded codes, count of operations), the loaded
// codes (ascending), the operations' codes, one byte for each operation.
// benchmarks/index/workload.py writes it.
class Workload {
 public:
  static constexpr std::uint64_t kMagic = 0x31786469636e6562;

  explicit Workload(const std::string& path) {
    auto file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category(), path);
    struct stat found{};
    if (fstat(file, &found) == 0) bytes_ = static_cast<std::size_t>(found.st_size);
    if (bytes_ >= kHeader) {
      base_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    }
    close(file);
    if (base_ == MAP_FAILED) throw std::runtime_error(path + ": cannot be mapped");
    read_header(path);
  }
  ~Workload() { munmap(base_, bytes_); }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  std::span<const std::uint64_t> loaded() const { return {words() + 3, loaded_}; }
  std::span<const std::uint64_t> codes() const { return {words() + 3 + loaded_, operations_}; }
  std::span<const std::uint8_t> operations() const {
    return {reinterpret_cast<const std::uint8_t*>(codes().data() + operations_), operations_};
  }

 private:
  static constexpr std::size_t kHeader = 24;

  const std::uint64_t* words() const { return static_cast<const std::uint64_t*>(base_); }

  void read_header(const std::string& path) {
    if (words()[0] == kMagic) {
      loaded_ = words()[1];
      operations_ = words()[2];
      if (bytes_ == kHeader + 8 * loaded_ + 9 * operations_) return;
    }
    throw std::runtime_error(path + ": is no workload");
  }

  void* base_ = MAP_FAILED;
  std::size_t bytes_ = 0;
  std::size_t loaded_ = 0;
  std::size_t operations_ = 0;
};

}  // namespace headrace::index::bench
