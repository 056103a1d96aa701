// A trace of bounded size of the operations on a live map, sampled by key: all operations on a key
// are recorded or none (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015).
// So the trace is one of a smaller map with the same mix, in which the same keys are found, new and
// erased. When it is full, the share of the keys is halved, and what is outside of it dropped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "index/observe/activity.hpp"

namespace headrace::index {

struct RecordedOperation {
  std::uint64_t code = 0;
  Operation operation = Operation::find;
  bool present = false;  // whether the key was in the map before; false for scans
};

class Recording {
 public:
  // Every 2^`halvings`-th key, and at most `most` operations (2 at least).
  Recording(unsigned halvings, std::size_t most)
      : halvings_(std::min(halvings, kMostHalvings)), most_(std::max<std::size_t>(most, 2)) {
    operations_.reserve(most_);  // so that recording never fails in the middle of an operation
  }

  bool selects(std::uint64_t code) const { return selects(code, halvings_); }

  static bool selects(std::uint64_t code, unsigned halvings) {
    // The finalizer of MurmurHash3: neighbouring codes are selected independently.
    code ^= code >> 33;
    code *= 0xFF51AFD7ED558CCD;
    code ^= code >> 33;
    code *= 0xC4CEB9FE1A85EC53;
    return (code >> (64 - kMostHalvings)) < (std::uint64_t{1} << (kMostHalvings - halvings));
  }

  void add(Operation operation, std::uint64_t code, bool present) {
    if (!selects(code)) return;
    if (operations_.size() >= most_) halve();
    if (selects(code)) operations_.push_back({code, operation, present});
  }

  // The share of keys is one in 2^halvings.
  unsigned halvings() const { return halvings_; }
  const std::vector<RecordedOperation>& operations() const { return operations_; }

 private:
  static constexpr unsigned kMostHalvings = 32;

  void halve() {
    while (operations_.size() >= most_) {
      if (halvings_ == kMostHalvings) {
        operations_.resize(most_ / 2);  // one key alone has filled it
        return;
      }
      ++halvings_;
      std::erase_if(operations_, [&](const RecordedOperation& one) { return !selects(one.code); });
    }
  }

  unsigned halvings_;
  std::size_t most_;
  std::vector<RecordedOperation> operations_;
};

}  // namespace headrace::index
