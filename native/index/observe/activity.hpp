// Observation of the operations on a map, for adaptation: counters, times, and a sample of codes.
// An operation by itself costs one subtraction: for each kind of operation the distance to the next
// one of the sample is counted down, and everything else is done at that one.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::index {

enum class Operation : std::uint8_t { find, insert, erase, scan };
constexpr std::size_t kOperations = 4;
// Most keys that a scan of a trace reads.
constexpr std::size_t kScanLength = 100;

struct OperationCounts {
  std::uint64_t operations = 0;
  std::uint64_t effective = 0;  // of the timed ones: found, new, erased keys, or scanned ones
  std::uint64_t timed = 0;      // batches, and of other operations those of the sample
  std::uint64_t timed_ns = 0;
};

// One operation of the sample.
struct SampledOperation {
  std::uint64_t code = 0;
  Operation operation = Operation::find;
};

class Activity {
  struct Kind;

 public:
  static constexpr std::size_t kSample = 2048;
  // Operations of a kind for each one of the sample, on average. The first of each kind is one.
  static constexpr std::uint64_t kStride = 512;
  // Shorter batches are timed only if one of their operations is sampled.
  static constexpr std::size_t kTimedBatch = 16;

  using Clock = std::chrono::steady_clock;

  // Counts one operation by itself. False: it is due, and to be timed and sampled as a batch is.
  bool passes(Operation operation) {
    auto& left = kind(operation).left;
    if (left == 0) return false;
    --left;
    return true;
  }

  // Times one batch, from construction to `done`; made before the batch is sampled.
  class Batch {
   public:
    Batch(Activity& activity, Operation operation, std::size_t count)
        : kind_(activity.kind(operation)), count_(count) {
      timed_ = count >= kTimedBatch || kind_.left < count;
      if (timed_) began_ = Clock::now();
    }

    void done(std::uint64_t effective) {
      if (!timed_) return;
      kind_.effective += effective;
      kind_.timed += count_;
      kind_.timed_ns += static_cast<std::uint64_t>((Clock::now() - began_).count());
    }

   private:
    Kind& kind_;
    std::size_t count_;
    bool timed_;
    Clock::time_point began_;
  };

  // Passes over the codes of operations, counts them, and keeps those that are due.
  void sample(Operation operation, const std::uint64_t* codes, std::size_t count) {
    auto& passed = kind(operation);
    std::size_t at = 0;
    for (; passed.left < count - at; ++at) {
      at += passed.left;
      keep({codes[at], operation});
      const auto distance = next_distance();
      passed.drawn += distance;
      passed.left = distance - 1;
    }
    passed.left -= count - at;
  }

  std::array<OperationCounts, kOperations> counts() const {
    std::array<OperationCounts, kOperations> counts;
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto& kind = kinds_[i];
      counts[i] = {kind.drawn - kind.left, kind.effective, kind.timed, kind.timed_ns};
    }
    return counts;
  }
  // Operations sampled so far; the last `kSample` of them are kept.
  std::uint64_t sampled() const { return sampled_; }
  const SampledOperation& sampled(std::uint64_t number) const { return sample_[number % kSample]; }

 private:
  struct Kind {
    std::uint64_t left = 0;   // operations before the next one of the sample
    std::uint64_t drawn = 0;  // operations up to that one
    std::uint64_t effective = 0;
    std::uint64_t timed = 0;
    std::uint64_t timed_ns = 0;
  };

  // The sample's memory grows with it: a map may be small, and used little.
  void keep(const SampledOperation& operation) {
    if (sampled_ < kSample) {
      sample_.push_back(operation);
    } else {
      sample_[sampled_ % kSample] = operation;
    }
    ++sampled_;
  }

  Kind& kind(Operation operation) { return kinds_[static_cast<std::size_t>(operation)]; }

  // 1 to 2 * kStride - 1, by xorshift: a fixed distance could agree with a period of the workload.
  std::uint64_t next_distance() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return 1 + random_ % (2 * kStride - 1);
  }

  std::array<Kind, kOperations> kinds_{};
  std::uint64_t random_ = 0x9E3779B97F4A7C15;
  std::uint64_t sampled_ = 0;
  std::vector<SampledOperation> sample_;
};

}  // namespace headrace::index
