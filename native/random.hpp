// A small random stream, identical on every platform.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream)
      : state_(seed * 0x9e3779b97f4a7c15U + stream * 0xd1342543de82ef95U + 0x2545f4914f6cdd1dU) {
    next();
    next();
  }

  // SplitMix64.
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    auto z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  float unit() { return static_cast<float>(next() >> 40) * 0x1p-24F; }
  int below(int limit) {
    return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(limit) >> 32);
  }
  template <std::size_t N>
  float one_of(const float (&values)[N]) {
    return values[below(static_cast<int>(N))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace headrace
