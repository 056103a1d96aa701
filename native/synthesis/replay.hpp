// List scheduling: start times of ordered messages under the full cost model.
#pragma once

#include <vector>

#include "synthesis/problem.hpp"

namespace headrace::synthesis {

// Times closer than this fraction are one event: sums of the same costs in another order differ by
// rounding, which must not decide the order of messages.
inline constexpr double kSameTime = 1e-9;

struct Times {
  std::vector<double> start;  // per message
  double total_us = 0;
};

// A message starts when its chunks are complete at its source (whatever earlier messages bring
// there), the link's previous message has ended and all of the link's resources are free; it holds
// each resource for alpha + beta * MB and arrives after the slowest of them. Whenever something
// becomes free the ready message of the lowest number starts first.
Times replay(const Network& network, const Resources& resources, int chunks, double chunk_mb,
             const Messages& messages);

}  // namespace headrace::synthesis
