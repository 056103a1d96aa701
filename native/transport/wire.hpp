// What goes over a connection: one Hello, then frames of a Header and its payload.
//
// Both ends are little-endian hosts of one job; the Hello's magic would not match otherwise.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// One frame carries the payload of one step. Everything else about it is in the plan.
struct Header {
  std::uint32_t epoch;       // plan generation; point to point: high half of the length
  std::uint32_t collective;  // sequence number; point to point: the tag; control: a rank
  std::uint32_t lane;        // channel of the lane, or one of the special lanes below
  std::uint32_t length;      // payload bytes
};
static_assert(sizeof(Header) == 16);

inline constexpr std::uint32_t kPointToPointLane = 0xfffffffd;
inline constexpr std::uint32_t kGoodbyeLane = 0xfffffffe;  // an orderly end, nothing follows
inline constexpr std::uint32_t kAbortLane = 0xffffffff;    // `collective` is the rank to blame

// Connections are numbered per peer: data channels from 0, and these two.
inline constexpr std::int32_t kControlChannel = -2;
inline constexpr std::int32_t kPointToPointChannel = -1;

struct Hello {
  static constexpr std::uint64_t kMagic = 0x3165636172646168;  // "hadrace1"
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t channel;
  std::array<char, 64> token;  // only members of one group know it
};
static_assert(sizeof(Hello) == 80);

}  // namespace headrace
