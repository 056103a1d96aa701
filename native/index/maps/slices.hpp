// Work on all leaves of a map beside its users: in slices, each short enough that a call which
// waits for the lock hardly notices.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "index/maps/dynamic_map.hpp"

namespace headrace::index {

// Reads the codes of all keys that a recording of so many halvings selects. Keys that are inserted
// or erased meanwhile may be among them or not. Slices take the share of the time: an unlocked
// mutex alone does not let others in.
class SlicedSelection {
 public:
  // Throws std::invalid_argument.
  explicit SlicedSelection(unsigned halvings, double share = 0.5)
      : halvings_(halvings), share_(share) {
    if (!(share > 0 && share <= 1)) throw std::invalid_argument("share needs 0 to 1");
  }

  // Reads for about `seconds`. False: the end is reached.
  bool run(const DynamicMap& map, double seconds) {
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;
    constexpr std::size_t kSliceKeys = 1U << 15;  // some hundred microseconds
    for (const auto first = Clock::now();
         !done_ && Seconds(Clock::now() - first).count() < seconds;) {
      const auto began = Clock::now();
      done_ = !map.select(cursor_, kSliceKeys, halvings_, codes_);
      if (!done_) std::this_thread::sleep_for(Seconds(Clock::now() - began) * (1 / share_ - 1));
    }
    return !done_;
  }

  const std::vector<std::uint64_t>& codes() const { return codes_; }

 private:
  unsigned halvings_;
  double share_;
  std::uint64_t cursor_ = 0;
  bool done_ = false;
  std::vector<std::uint64_t> codes_;
};

struct SliceLimits {
  double slice_s = 3e-4;  // aim of one slice, well below a millisecond
  double share = 0.5;     // of the time that slices take
};

class SlicedConversion {
 public:
  // Throws std::invalid_argument.
  explicit SlicedConversion(const SliceLimits& limits = {}) : limits_(limits) {
    if (!(limits.slice_s > 0) || !(limits.share > 0 && limits.share <= 1)) {
      throw std::invalid_argument("slice_s and share need more than 0, share at most 1");
    }
  }

  // Converts leaves to the map's configuration for about `seconds`. False: the end is reached.
  bool run(DynamicMap& map, double seconds) {
    const auto end = Clock::now() + as_time(seconds);
    while (!done_ && Clock::now() < end) {
      const double taken = map.convert(cursor_, keys_, done_);
      ++slices_;
      longest_s_ = std::max(longest_s_, taken);
      aim(taken);
      if (!done_) std::this_thread::sleep_for(as_time(taken * (1 / limits_.share - 1)));
    }
    return !done_;
  }

  std::uint64_t cursor() const { return cursor_; }
  std::uint64_t slices() const { return slices_; }
  double longest_s() const { return longest_s_; }  // time that a slice held the lock

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kFewest = 256;
  static constexpr double kMost = 65'536;

  static Clock::duration as_time(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Fewer keys at once where they took long; more, by twice at most, where they did not.
  void aim(double taken) {
    const double factor = std::clamp(limits_.slice_s / std::max(taken, 1e-9), 0.25, 2.0);
    const double keys = static_cast<double>(keys_) * factor;
    keys_ = static_cast<std::size_t>(std::clamp(keys, kFewest, kMost));
  }

  SliceLimits limits_;
  std::size_t keys_ = 1024;
  std::uint64_t cursor_ = 0;
  std::uint64_t slices_ = 0;
  double longest_s_ = 0;
  bool done_ = false;
};

}  // namespace headrace::index
