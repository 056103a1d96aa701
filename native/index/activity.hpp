// Observation of the operations on a map, for adaptation: counters, times, and a sample of codes.
// It costs an addition for each batch, and a subtraction for each operation by itself.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace headrace::index {

enum class Operation : std::uint8_t { find, insert, erase, scan };
constexpr std::size_t kOperations = 4;
// Most keys that a scan of a trace reads.
constexpr std::size_t kScanLength = 100;

struct OperationCounts {
  std::uint64_t operations = 0;
  std::uint64_t effective = 0;  // found, new, or erased keys; keys that scans returned
  std::uint64_t timed = 0;      // operations whose time is in `timed_ns`
  std::uint64_t timed_ns = 0;
};

// One operation of the sample.
struct SampledOperation {
  std::uint64_t code = 0;
  Operation operation = Operation::find;
};

class Activity {
 public:
  static constexpr std::size_t kSample = 2048;
  // Operations for each one of the sample, on average.
  static constexpr std::uint64_t kStride = 512;
  // Shorter batches are timed only if one of them is sampled.
  static constexpr std::size_t kTimedBatch = 16;

  using Clock = std::chrono::steady_clock;

  // Times one batch, from construction to `done`.
  class Batch {
   public:
    Batch(Activity& activity, Operation operation, std::size_t count)
        : activity_(activity), operation_(operation), count_(count) {
      timed_ = count >= kTimedBatch || activity.left_ <= count;
      if (timed_) began_ = Clock::now();
    }

    void done(std::uint64_t effective) {
      auto& counts = activity_.counts_[static_cast<std::size_t>(operation_)];
      counts.operations += count_;
      counts.effective += effective;
      if (!timed_) return;
      counts.timed += count_;
      counts.timed_ns += static_cast<std::uint64_t>((Clock::now() - began_).count());
    }

   private:
    Activity& activity_;
    Operation operation_;
    std::size_t count_;
    bool timed_;
    Clock::time_point began_;
  };

  // Passes over the codes of operations, and keeps those that are due.
  void sample(Operation operation, const std::uint64_t* codes, std::size_t count) {
    std::size_t at = 0;
    while (left_ <= count - at) {
      at += left_;
      sample_[sampled_++ % kSample] = {codes[at - 1], operation};
      left_ = next_distance();
    }
    left_ -= count - at;
  }

  const std::array<OperationCounts, kOperations>& counts() const { return counts_; }
  // Operations sampled so far; the last `kSample` of them are kept.
  std::uint64_t sampled() const { return sampled_; }
  const SampledOperation& sampled(std::uint64_t number) const { return sample_[number % kSample]; }

 private:
  // 1 to 2 * kStride - 1, by xorshift: a fixed distance could agree with a period of the workload.
  std::uint64_t next_distance() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return 1 + random_ % (2 * kStride - 1);
  }

  std::array<OperationCounts, kOperations> counts_{};
  std::uint64_t random_ = 0x9E3779B97F4A7C15;
  std::uint64_t left_ = kStride;
  std::uint64_t sampled_ = 0;
  std::array<SampledOperation, kSample> sample_{};
};

}  // namespace headrace::index
