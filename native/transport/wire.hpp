// Wire format of an open connection: frames of a Header and its payload.
//
// Both ends are little-endian hosts of one job.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// One frame carries the payload of one step; the plan defines everything else.
struct Header {
  std::uint32_t epoch;       // plan generation; point to point: element type in the upper byte,
                             // and the rest of the length
  std::uint32_t collective;  // sequence number; point to point: the tag; control: a rank
  std::uint32_t lane;    // channel of the lane and the collective's signature in the upper half,
                         // or one of the special lanes below
  std::uint32_t length;  // payload bytes
};
static_assert(sizeof(Header) == 16);

inline constexpr std::uint32_t kAnswerLane = 0xfffffffb;  // to a heartbeat
inline constexpr std::uint32_t kBeatLane = 0xfffffffc;    // a heartbeat
inline constexpr std::uint32_t kPointToPointLane = 0xfffffffd;
inline constexpr std::uint32_t kGoodbyeLane = 0xfffffffe;  // orderly end, nothing follows
inline constexpr std::uint32_t kAbortLane = 0xffffffff;    // `collective` is the rank at fault

// Channels of the connections to a peer: data channels from 0, by priority, and these two.
inline constexpr std::int32_t kControlChannel = -2;
inline constexpr std::int32_t kPointToPointChannel = -1;

}  // namespace headrace
