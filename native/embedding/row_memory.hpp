// Memory of embedding rows: a limit for all of a store, and pieces of some rows each, cut from
// chunks of 2 MB. No row moves once it has a place.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "huge_pages.hpp"

namespace headrace::embedding {

// The rows need more memory than there is, or than they may have.
class MemoryExhausted : public std::bad_alloc {
 public:
  explicit MemoryExhausted(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// For several threads at once.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t most) : most_(most) {}

  void take(std::size_t bytes) {
    const auto used = used_.fetch_add(bytes) + bytes;
    if (used <= most_) return;
    give(bytes);
    throw MemoryExhausted("embedding rows need " + std::to_string(used) +
                          " bytes of memory, may have " + std::to_string(most_));
  }
  void give(std::size_t bytes) noexcept { used_.fetch_sub(bytes); }
  std::size_t used() const { return used_.load(); }

 private:
  std::size_t most_;
  std::atomic<std::size_t> used_ = 0;
};

// An allocator whose memory counts.
template <class T>
class Budgeted {
 public:
  using value_type = T;

  explicit Budgeted(MemoryBudget& budget) : budget_(&budget) {}
  template <class U>
  Budgeted(const Budgeted<U>& other) : budget_(other.budget()) {}

  T* allocate(std::size_t count) {
    const auto bytes = count * sizeof(T);
    budget_->take(bytes);
    try {
      return HugePages<T>().allocate(count);
    } catch (...) {
      budget_->give(bytes);
      throw;
    }
  }
  void deallocate(T* memory, std::size_t count) {
    HugePages<T>().deallocate(memory, count);
    budget_->give(count * sizeof(T));
  }
  MemoryBudget* budget() const { return budget_; }
  template <class U>
  bool operator==(const Budgeted<U>& other) const {
    return budget_ == other.budget();
  }

 private:
  MemoryBudget* budget_;
};

template <class T>
using BudgetedVector = std::vector<T, Budgeted<T>>;

// Where pieces are cut from, for several threads at once.
class RowChunks {
 public:
  RowChunks(MemoryBudget& budget, std::size_t row_bytes)
      : budget_(budget),
        row_bytes_(row_bytes),
        piece_shift_(std::bit_width(std::clamp(kPieceBytes / row_bytes, std::size_t{1},
                                               std::size_t{1} << kMostPieceShift)) -
                     1),
        chunk_bytes_((std::max(kHugePage, piece_bytes()) + kHugePage - 1) / kHugePage * kHugePage) {
  }
  ~RowChunks() {
    for (auto* chunk : chunks_) {
      munmap(chunk, chunk_bytes_);
      budget_.give(chunk_bytes_);
    }
  }
  RowChunks(const RowChunks&) = delete;
  RowChunks& operator=(const RowChunks&) = delete;

  // Memory of zeros for the next piece. Throws MemoryExhausted.
  std::byte* cut() {
    const std::lock_guard lock(mutex_);
    if (left_ < piece_bytes()) add_chunk();
    left_ -= piece_bytes();
    return std::exchange(next_, next_ + piece_bytes());
  }

  MemoryBudget& budget() const { return budget_; }
  std::size_t row_bytes() const { return row_bytes_; }
  std::size_t piece_bytes() const { return row_bytes_ << piece_shift_; }
  // Rows of a piece are a power of two.
  int piece_shift() const { return piece_shift_; }

 private:
  // A chunk's end that no piece fits in is then at most 1% of it, and the piece that a table has
  // begun costs little.
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 10;
  static constexpr int kMostPieceShift = 6;

  void add_chunk() {
    chunks_.reserve(chunks_.size() + 1);
    budget_.take(chunk_bytes_);
    // Aligned for huge pages: what is mapped before and behind goes back.
    const auto mapped = chunk_bytes_ + kHugePage;
    void* memory =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      budget_.give(chunk_bytes_);
      throw MemoryExhausted("embedding rows have " + std::to_string(budget_.used()) +
                            " bytes of memory, and the system has no more");
    }
    auto* begin = static_cast<std::byte*>(memory);
    const auto before = -reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
    if (before > 0) munmap(begin, before);
    if (before < kHugePage) munmap(begin + before + chunk_bytes_, kHugePage - before);
    next_ = begin + before;
    madvise(next_, chunk_bytes_, MADV_HUGEPAGE);  // advice: a kernel may have none
    left_ = chunk_bytes_;
    chunks_.push_back(next_);
  }

  MemoryBudget& budget_;
  std::size_t row_bytes_;
  int piece_shift_;
  std::size_t chunk_bytes_;
  std::mutex mutex_;
  std::vector<std::byte*> chunks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

// Rows of one table, or of a part of it, numbered from 0 on.
class RowPieces {
 public:
  explicit RowPieces(RowChunks& chunks)
      : pieces_(Budgeted<std::byte*>(chunks.budget())),
        chunks_(&chunks),
        row_bytes_(chunks.row_bytes()),
        shift_(chunks.piece_shift()) {}

  std::byte* row(std::size_t number) const {
    return pieces_[number >> shift_] + (number & ((std::size_t{1} << shift_) - 1)) * row_bytes_;
  }
  // Makes room in the list of pieces for so many rows.
  void expect(std::size_t rows) {
    pieces_.reserve((rows + (std::size_t{1} << shift_) - 1) >> shift_);
  }
  // Makes room for row `number`, the next one. Throws std::bad_alloc, with everything as it was.
  void reserve(std::size_t number) {
    if (number >> shift_ < pieces_.size()) return;
    if (pieces_.size() == pieces_.capacity()) {
      pieces_.reserve(std::max(std::size_t{1}, pieces_.size() + (pieces_.size() + 1) / 2));
    }
    pieces_.push_back(chunks_->cut());
  }
  std::size_t bytes() const {
    return pieces_.size() * chunks_->piece_bytes() + pieces_.capacity() * sizeof(std::byte*);
  }

 private:
  BudgetedVector<std::byte*> pieces_;
  RowChunks* chunks_;
  std::size_t row_bytes_;
  int shift_;
};

}  // namespace headrace::embedding
